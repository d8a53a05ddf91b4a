package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/scon-project/scon/internal/api"
)

// unknown is the level of a check that was not possible.
const unknown = "unknown"

// A preparation is a setting of the machine that affects latency, or that the paper
// "Applicability of Hardware-Supported Containers in Low-Latency Networking",
// section III-B, changed on its host.
type preparation struct {
	name  string
	paper string // the setting in the paper
	check func(h host) result
	// tried is the option of 'scon pin apply' with which 'scon pin advise' tries
	// it, "" where it has none.
	tried string
}

// preparations are in the paper's order: host, interrupts; then those that the
// paper does not mention.
var preparations = []preparation{
	{"real-time kernel", "on (PREEMPT_RT)", checkRealTime, ""},
	{"sleep states", "off", checkSleep, "--power"},
	{"idle polling", "on (idle=poll)", checkIdlePolling, ""},
	{"governor", "performance on all cores", checkGovernor, "--power"},
	{"RCU callbacks", "off the cores with packets (rcu_nocbs)", checkRCU, ""},
	{"logging", "off", checkLogging, ""},
	{"irqaffinity", "core 0 (irqaffinity=0)", checkIRQAffinity, ""},
	{"SMT", "off", checkSMT, ""},
	{"slices", "user and system on core 0", checkSlices, ""},
	{"isolated CPUs", "none: the paper calls isolation from the kernel impossible", checkIsolated, ""},
	{"irqbalance", "interrupts are pinned, so it must not run", checkIrqbalance, ""},
	{"interrupts", "a core each, or the card's NUMA node", checkInterrupts, ""},
	{"queues", "one per device, for a single flow", checkQueues, ""},
	{"packet steering", "not mentioned", checkSteering, "--steer rps"},
	{"polling threads", "not used: softirqs, which ksoftirqd takes over under load", checkThreads, "--steer threaded"},
}

// Latency checks how the machine is prepared for low latency.
func Latency() api.LatencyDoctor { return latencyOf(thisHost()) }

func latencyOf(h host) api.LatencyDoctor {
	d := api.LatencyDoctor{Kernel: h.release}
	for _, p := range preparations {
		s := p.check(h)
		d.Preparations = append(d.Preparations, api.Preparation{
			Name: p.name, Paper: p.paper, Level: s.level, Found: s.found, Remedy: s.remedy, Seen: p.measured(),
		})
	}
	return d
}

// measured says how to measure on this machine whether it matters.
func (p preparation) measured() string {
	if p.tried == "" {
		return "not measured here"
	}
	return "not measured here: 'scon pin advise' tries " + p.tried
}

// unreadable is the result for a file that is missing or not readable.
func unreadable(err error) result { return result{unknown, err.Error(), ""} }

// bootOption is the value of an option of the kernel's command line.
func (h host) bootOption(name string) (value string, found bool, err error) {
	line, err := h.read("/proc/cmdline")
	if err != nil {
		return "", false, err
	}
	for _, word := range strings.Fields(line) {
		key, is, _ := strings.Cut(word, "=")
		if key == name {
			value, found = is, true
		}
	}
	return value, found, nil
}

func checkRealTime(h host) result {
	if value, _ := h.read("/sys/kernel/realtime"); value == "1" {
		return result{ok, "/sys/kernel/realtime = 1", ""}
	}
	version, err := h.read("/proc/version")
	switch {
	case err != nil:
		return unreadable(err)
	case strings.Contains(version, "PREEMPT_RT"):
		return result{ok, "PREEMPT_RT", ""}
	}
	kind := "not preemptible by default"
	for _, word := range []string{"PREEMPT_DYNAMIC", "PREEMPT"} {
		if strings.Contains(version, word) {
			kind = word
			break
		}
	}
	return result{note, kind, "install a real-time kernel (Debian: linux-image-rt-" + runtime.GOARCH + ")"}
}

// deepUS is the exit latency, in microseconds, above which an idle state delays a
// core's answer.
const deepUS = 2

func checkSleep(h host) result {
	states, err := filepath.Glob(h.path("/sys/devices/system/cpu/cpu[0-9]*/cpuidle/state[0-9]*"))
	if err != nil {
		return unreadable(err)
	}
	deep := make(map[string]bool)
	for _, dir := range states {
		dir = strings.TrimPrefix(dir, filepath.Clean(h.root))
		latency, err := h.number(dir + "/latency")
		disabled, err2 := h.read(dir + "/disable")
		if err == nil && err2 == nil && latency > deepUS && disabled != "1" {
			name, _ := h.read(dir + "/name")
			deep[fmt.Sprintf("%s (%d us)", name, latency)] = true
		}
	}
	switch {
	case len(states) == 0:
		return result{unknown, "not visible: the hypervisor or the firmware controls idle states", ""}
	case len(deep) > 0:
		return result{note, "used: " + strings.Join(sortedKeys(deep), ", "), "scon pin apply --policy none --power; or processor.max_cstate=1 intel_idle.max_cstate=0 at boot"}
	}
	return result{ok, "no state deeper than C1 is used", ""}
}

func checkIdlePolling(h host) result {
	value, found, err := h.bootOption("idle")
	switch {
	case err != nil:
		return unreadable(err)
	case found && value == "poll":
		return result{ok, "idle=poll", ""}
	}
	return result{note, "no idle=poll: idle CPUs sleep", "idle=poll at boot; idle CPUs then use as much power as busy ones"}
}

func checkGovernor(h host) result {
	files, err := filepath.Glob(h.path("/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"))
	if err != nil {
		return unreadable(err)
	}
	others := make(map[string]bool)
	for _, file := range files {
		if value, err := h.read(strings.TrimPrefix(file, filepath.Clean(h.root))); err == nil && value != "performance" {
			others[value] = true
		}
	}
	switch {
	case len(files) == 0:
		return result{unknown, "not visible: the hypervisor or the firmware sets the frequency", ""}
	case len(others) > 0:
		return result{note, strings.Join(sortedKeys(others), ", "), "scon pin apply --policy none --power; or cpupower frequency-set -g performance"}
	}
	return result{ok, "performance", ""}
}

func checkRCU(h host) result {
	value, found, err := h.bootOption("rcu_nocbs")
	switch {
	case err != nil:
		return unreadable(err)
	case found:
		return result{ok, strings.TrimSuffix("rcu_nocbs="+value, "="), ""}
	}
	return result{note, "no rcu_nocbs: callbacks run in softirqs of every CPU", "rcu_nocbs=CPUS rcu_nocb_poll at boot, with a kernel that has CONFIG_RCU_NOCB_CPU"}
}

// loggers are the known log daemons.
var loggers = []string{"rsyslogd", "syslog-ng", "systemd-journal", "auditd"}

func checkLogging(h host) result {
	running, err := h.processes()
	if err != nil {
		return unreadable(err)
	}
	var found []string
	for _, name := range loggers {
		if running[name] {
			found = append(found, name)
		}
	}
	if len(found) > 0 {
		return result{note, "running: " + strings.Join(found, ", "), "systemctl stop rsyslog auditd; Storage=none in journald.conf; audit=0 at boot"}
	}
	return result{ok, "no logger runs", ""}
}

func checkIRQAffinity(h host) result {
	value, found, err := h.bootOption("irqaffinity")
	if err != nil {
		return unreadable(err)
	}
	if found {
		return result{ok, "irqaffinity=" + value, ""}
	}
	mask, err := h.read("/proc/irq/default_smp_affinity")
	if err != nil {
		return unreadable(err)
	}
	return result{note, "no irqaffinity; new interrupts go to CPUs of mask " + mask, "irqaffinity=0 at boot, and scon pin apply for network interrupts"}
}

func checkSMT(h host) result {
	active, err := h.read("/sys/devices/system/cpu/smt/active")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return result{ok, "this kernel has none", ""}
	case err != nil:
		return unreadable(err)
	case active == "1":
		return result{note, "on", "echo off >/sys/devices/system/cpu/smt/control; or nosmt at boot"}
	}
	return result{ok, "off", ""}
}

// checkSlices reports where systemd lets users and services run.
func checkSlices(h host) result {
	all, err := h.read("/sys/devices/system/cpu/online")
	if err != nil {
		return unreadable(err)
	}
	var open []string
	seen := false
	for _, slice := range []string{"system.slice", "user.slice"} {
		if !h.exists("/sys/fs/cgroup/" + slice) {
			continue
		}
		seen = true
		cpus, err := h.read("/sys/fs/cgroup/" + slice + "/cpuset.cpus.effective")
		if err != nil || cpus == all {
			open = append(open, slice)
		}
	}
	switch {
	case !seen:
		return result{unknown, "no slices: systemd is not running", ""}
	case len(open) > 0:
		return result{note, strings.Join(open, ", ") + ": all CPUs", "systemctl set-property --runtime " + open[0] + " AllowedCPUs=0"}
	}
	return result{ok, "restricted", ""}
}

func checkIsolated(h host) result {
	var found []string
	for _, name := range []string{"isolated", "nohz_full"} {
		value, err := h.read("/sys/devices/system/cpu/" + name)
		if err == nil && value != "" && value != "(null)" {
			found = append(found, name+" "+value)
		}
	}
	if len(found) > 0 {
		return result{note, strings.Join(found, ", ") + ": scon pin places no work there", ""}
	}
	return result{ok, "none", ""}
}

func checkIrqbalance(h host) result {
	running, err := h.processes()
	switch {
	case err != nil:
		return unreadable(err)
	case running["irqbalance"]:
		return result{note, "running: it moves interrupts every 10 s", "scon pin apply excludes pinned interrupts from it; or systemctl stop irqbalance"}
	}
	return result{ok, "not running", ""}
}

func checkQueues(h host) result {
	dirs, err := filepath.Glob(h.path("/sys/class/net/*/device"))
	if err != nil {
		return unreadable(err)
	}
	var many []string
	for _, dir := range dirs {
		name := filepath.Base(filepath.Dir(dir))
		queues, _ := filepath.Glob(filepath.Dir(dir) + "/queues/rx-*")
		if len(queues) > 1 {
			many = append(many, fmt.Sprintf("%s has %d", name, len(queues)))
		}
	}
	switch {
	case len(dirs) == 0:
		return result{unknown, "no hardware device in this network namespace", ""}
	case len(many) > 0:
		return result{note, strings.Join(many, ", "), "ethtool -L DEVICE combined 1, if there is a single flow"}
	}
	return result{ok, "one per device", ""}
}

// checkInterrupts reports what scon pin has in force.
func checkInterrupts(h host) result {
	if h.exists("/var/lib/scon/pin.json") {
		return result{ok, "pinned by scon pin: 'scon pin status'", ""}
	}
	return result{note, "not pinned", "scon pin plan --policy core; scon pin advise"}
}

// devicesWith are the devices of this namespace that a file of theirs says
// something else of than 0.
func (h host) devicesWith(pattern string) ([]string, error) {
	files, err := filepath.Glob(h.path("/sys/class/net/*/" + pattern))
	if err != nil {
		return nil, err
	}
	devices := make(map[string]bool)
	for _, file := range files {
		name := strings.TrimPrefix(file, filepath.Clean(h.root))
		if value, err := h.read(name); err == nil && strings.Trim(value, "0,") != "" {
			devices[strings.Split(name, "/")[4]] = true
		}
	}
	return sortedKeys(devices), nil
}

func checkSteering(h host) result {
	devices, err := h.devicesWith("queues/rx-*/rps_cpus")
	switch {
	case err != nil:
		return unreadable(err)
	case len(devices) > 0:
		return result{note, "RPS at " + strings.Join(devices, ", "), "echo 0 >/sys/class/net/DEVICE/queues/rx-0/rps_cpus"}
	}
	return result{ok, "none", "scon pin advise measures whether it helps"}
}

func checkThreads(h host) result {
	devices, err := h.devicesWith("threaded")
	switch {
	case err != nil:
		return unreadable(err)
	case len(devices) > 0:
		return result{note, strings.Join(devices, ", "), "echo 0 >/sys/class/net/DEVICE/threaded"}
	}
	return result{ok, "none", "scon pin advise measures whether they help"}
}

// processes are the names of those that run.
func (h host) processes() (map[string]bool, error) {
	files, err := filepath.Glob(h.path("/proc/[0-9]*/comm"))
	if err != nil {
		return nil, err
	}
	names := make(map[string]bool)
	for _, file := range files {
		if name, err := h.read(strings.TrimPrefix(file, filepath.Clean(h.root))); err == nil {
			names[name] = true
		}
	}
	return names, nil
}

// number is a file that has one.
func (h host) number(name string) (n int, err error) {
	text, err := h.read(name)
	if err == nil {
		_, err = fmt.Sscan(text, &n)
	}
	return n, err
}

func sortedKeys(set map[string]bool) []string {
	var keys []string
	for key := range set {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
