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

// unknown is the level of what could not be looked at.
const unknown = "unknown"

// A preparation is something that matters to latency, or that the paper "Applicability
// of Hardware-Supported Containers in Low-Latency Networking" has changed on its
// host (section III-B).
type preparation struct {
	name  string
	paper string // what it did
	look  func(h host) sight
	// tried is the option of 'scon pin apply' with which 'scon pin advise' tries
	// it, "" where it has none.
	tried string
}

// preparations stand in the paper's order, then what it did to interrupts, then
// what SCON knows besides.
var preparations = []preparation{
	{"real-time kernel", "on (PREEMPT_RT)", lookRealTime, ""},
	{"sleep states", "off", lookSleep, "--power"},
	{"idle polling", "on (idle=poll)", lookIdlePolling, ""},
	{"governor", "performance on all cores", lookGovernor, "--power"},
	{"RCU callbacks", "off the cores with packets (rcu_nocbs)", lookRCU, ""},
	{"logging", "off", lookLogging, ""},
	{"irqaffinity", "core 0 (irqaffinity=0)", lookIRQAffinity, ""},
	{"SMT", "off", lookSMT, ""},
	{"slices", "user and system on core 0", lookSlices, ""},
	{"isolated CPUs", "none: it says that isolation from the kernel is impossible", lookIsolated, ""},
	{"irqbalance", "interrupts are pinned, so it must not run", lookIrqbalance, ""},
	{"interrupts", "a core each, or the card's NUMA node", lookInterrupts, ""},
	{"queues", "one per device, for a single flow", lookQueues, ""},
	{"packet steering", "not said", lookSteering, "--steer rps"},
	{"polling threads", "not used: softirqs, which ksoftirqd takes over in floods", lookThreads, "--steer threaded"},
}

// Latency looks at how the machine is prepared for low latency.
func Latency() api.LatencyDoctor { return latencyOf(thisHost()) }

func latencyOf(h host) api.LatencyDoctor {
	d := api.LatencyDoctor{Kernel: h.release}
	for _, p := range preparations {
		s := p.look(h)
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

// unreadable is what is said of a file that is not there or not for this user.
func unreadable(err error) sight { return sight{unknown, err.Error(), ""} }

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

func lookRealTime(h host) sight {
	if value, _ := h.read("/sys/kernel/realtime"); value == "1" {
		return sight{ok, "/sys/kernel/realtime = 1", ""}
	}
	version, err := h.read("/proc/version")
	switch {
	case err != nil:
		return unreadable(err)
	case strings.Contains(version, "PREEMPT_RT"):
		return sight{ok, "PREEMPT_RT", ""}
	}
	kind := "not preemptible by default"
	for _, word := range []string{"PREEMPT_DYNAMIC", "PREEMPT"} {
		if strings.Contains(version, word) {
			kind = word
			break
		}
	}
	return sight{note, kind, "install a real-time kernel (Debian: linux-image-rt-" + runtime.GOARCH + ")"}
}

// deepUS is the latency of the idle states that a core does without when it is
// to answer at once.
const deepUS = 2

func lookSleep(h host) sight {
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
		return sight{unknown, "the machine below, or the firmware, decides how CPUs sleep", ""}
	case len(deep) > 0:
		return sight{note, "used: " + strings.Join(sortedKeys(deep), ", "), "scon pin apply --policy none --power; or processor.max_cstate=1 intel_idle.max_cstate=0 at boot"}
	}
	return sight{ok, "none deeper than C1 is used", ""}
}

func lookIdlePolling(h host) sight {
	value, found, err := h.bootOption("idle")
	switch {
	case err != nil:
		return unreadable(err)
	case found && value == "poll":
		return sight{ok, "idle=poll", ""}
	}
	return sight{note, "no idle=poll: CPUs sleep when there is nothing to do", "idle=poll at boot; it costs the power of full load"}
}

func lookGovernor(h host) sight {
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
		return sight{unknown, "none: the machine below, or the firmware, sets the frequency", ""}
	case len(others) > 0:
		return sight{note, strings.Join(sortedKeys(others), ", "), "scon pin apply --policy none --power; or cpupower frequency-set -g performance"}
	}
	return sight{ok, "performance", ""}
}

func lookRCU(h host) sight {
	value, found, err := h.bootOption("rcu_nocbs")
	switch {
	case err != nil:
		return unreadable(err)
	case found:
		return sight{ok, strings.TrimSuffix("rcu_nocbs="+value, "="), ""}
	}
	return sight{note, "no rcu_nocbs: callbacks run in softirqs of every CPU", "rcu_nocbs=CPUS rcu_nocb_poll at boot, with a kernel that has CONFIG_RCU_NOCB_CPU"}
}

// loggers are the processes that write logs.
var loggers = []string{"rsyslogd", "syslog-ng", "systemd-journal", "auditd"}

func lookLogging(h host) sight {
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
		return sight{note, "run: " + strings.Join(found, ", "), "systemctl stop rsyslog auditd; Storage=none in journald.conf; audit=0 at boot"}
	}
	return sight{ok, "no logger runs", ""}
}

func lookIRQAffinity(h host) sight {
	value, found, err := h.bootOption("irqaffinity")
	if err != nil {
		return unreadable(err)
	}
	if found {
		return sight{ok, "irqaffinity=" + value, ""}
	}
	mask, err := h.read("/proc/irq/default_smp_affinity")
	if err != nil {
		return unreadable(err)
	}
	return sight{note, "no irqaffinity; new interrupts may come to CPUs of mask " + mask, "irqaffinity=0 at boot, and scon pin apply for those of the network"}
}

func lookSMT(h host) sight {
	active, err := h.read("/sys/devices/system/cpu/smt/active")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return sight{ok, "this kernel has none", ""}
	case err != nil:
		return unreadable(err)
	case active == "1":
		return sight{note, "on", "echo off >/sys/devices/system/cpu/smt/control; or nosmt at boot"}
	}
	return sight{ok, "off", ""}
}

// lookSlices tells where systemd lets users and services run.
func lookSlices(h host) sight {
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
		return sight{unknown, "no slices: systemd does not run here", ""}
	case len(open) > 0:
		return sight{note, strings.Join(open, ", ") + ": all CPUs", "systemctl set-property --runtime " + open[0] + " AllowedCPUs=0"}
	}
	return sight{ok, "restricted", ""}
}

func lookIsolated(h host) sight {
	var found []string
	for _, name := range []string{"isolated", "nohz_full"} {
		value, err := h.read("/sys/devices/system/cpu/" + name)
		if err == nil && value != "" && value != "(null)" {
			found = append(found, name+" "+value)
		}
	}
	if len(found) > 0 {
		return sight{note, strings.Join(found, ", ") + ": scon pin places nothing there", ""}
	}
	return sight{ok, "none", ""}
}

func lookIrqbalance(h host) sight {
	running, err := h.processes()
	switch {
	case err != nil:
		return unreadable(err)
	case running["irqbalance"]:
		return sight{note, "runs: it moves interrupts every 10 s", "scon pin apply has it leave alone what is pinned; or systemctl stop irqbalance"}
	}
	return sight{ok, "does not run", ""}
}

func lookQueues(h host) sight {
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
		return sight{unknown, "no hardware device in this network namespace", ""}
	case len(many) > 0:
		return sight{note, strings.Join(many, ", "), "ethtool -L DEVICE combined 1, if there is a single flow"}
	}
	return sight{ok, "one per device", ""}
}

// lookInterrupts tells what scon pin has in force.
func lookInterrupts(h host) sight {
	if h.exists("/var/lib/scon/pin.json") {
		return sight{ok, "scon pin is in force: 'scon pin status'", ""}
	}
	return sight{note, "scon pin has placed none", "scon pin plan --policy core; scon pin advise"}
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

func lookSteering(h host) sight {
	devices, err := h.devicesWith("queues/rx-*/rps_cpus")
	switch {
	case err != nil:
		return unreadable(err)
	case len(devices) > 0:
		return sight{note, "RPS at " + strings.Join(devices, ", "), "echo 0 >/sys/class/net/DEVICE/queues/rx-0/rps_cpus"}
	}
	return sight{ok, "none", "scon pin advise tells whether it helps here"}
}

func lookThreads(h host) sight {
	devices, err := h.devicesWith("threaded")
	switch {
	case err != nil:
		return unreadable(err)
	case len(devices) > 0:
		return sight{note, strings.Join(devices, ", "), "echo 0 >/sys/class/net/DEVICE/threaded"}
	}
	return sight{ok, "none", "scon pin advise tells whether they help here"}
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
