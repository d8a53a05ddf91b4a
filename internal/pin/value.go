package pin

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
)

// ErrGone means that what was to be set is not there any more, or that another
// has its place.
var ErrGone = errors.New("it is gone")

// errNoThread is the case of a device that is down.
var errNoThread = errors.New("no thread polls the device")

// get reads the value of a setting as it is now.
func (h *Host) get(s Setting) (string, error) {
	value, err := h.value(s)
	if errors.Is(err, fs.ErrNotExist) {
		err = ErrGone
	}
	if err != nil {
		return "", fmt.Errorf("read %s: %w", s.Place(), err)
	}
	return value, nil
}

// set writes the value of a setting.
func (h *Host) set(s Setting, value string) error {
	err := h.setValue(s, value)
	if errors.Is(err, fs.ErrNotExist) {
		err = ErrGone
	}
	if err != nil {
		return fmt.Errorf("set %s to %q: %w", s.Place(), value, err)
	}
	return nil
}

func (h *Host) value(s Setting) (string, error) {
	if err := h.check(s); err != nil {
		return "", err
	}
	switch s.Kind {
	case kindIrqbalance:
		return h.irqbalanceArgs(s.Item)
	case kindGRO, kindTSO, kindMergeUDP:
		features, err := h.Kernel.Features(s.Netns, s.Device)
		if err != nil {
			return "", err
		}
		if s.Kind == kindTSO {
			return tsoOn(features), nil
		}
		return onOff(features[featureOf[s.Kind]]), nil
	case kindThreads:
		threads, err := h.Kernel.Threads(s.Netns, s.Device)
		return threadsText(threads), err
	}
	var value string
	err := h.withFile(s, func(path string) (err error) {
		value, err = readFile(path)
		return err
	})
	if err != nil || s.Kind != kindRPS && s.Kind != kindXPS {
		return value, err
	}
	set, err := parseMask(value)
	return set.String(), err
}

func (h *Host) setValue(s Setting, value string) error {
	if err := h.check(s); err != nil {
		return err
	}
	switch s.Kind {
	case kindIrqbalance:
		return h.setIrqbalance(s.Item, value)
	case kindGRO, kindMergeUDP:
		return h.Kernel.SetFeatures(s.Netns, s.Device, map[string]bool{featureOf[s.Kind]: value == "on"})
	case kindTSO:
		return h.setTSO(s, value)
	case kindThreads:
		return h.setThreads(s, value)
	case kindRPS, kindXPS:
		set, err := parseList(value)
		if err != nil {
			return err
		}
		value = set.mask()
	}
	return h.withFile(s, func(path string) error { return writeFile(path, value) })
}

// setTSO enables the features that value names, and those of TSO that it does
// not name off.
func (h *Host) setTSO(s Setting, value string) error {
	features, err := h.Kernel.Features(s.Netns, s.Device)
	if err != nil {
		return err
	}
	change := make(map[string]bool)
	for name, is := range features {
		if want := slices.Contains(strings.Split(value, "+"), name); isTSO(name) && want != is {
			change[name] = want
		}
	}
	return h.Kernel.SetFeatures(s.Netns, s.Device, change)
}

// check finds out whether a place is still its owner's.
func (h *Host) check(s Setting) error {
	switch s.Kind {
	case kindIRQ:
		irq, err := strconv.Atoi(s.Item)
		if err != nil {
			return err
		}
		switch now := h.actions(irq); now {
		case s.Owner:
		case "":
			return ErrGone
		default:
			return fmt.Errorf("%w: the interrupt is now of %q", ErrGone, now)
		}
	case kindGovernor, kindIdle, kindIrqbalance:
	default:
		t, err := h.sysfs(s.Netns)
		if errors.Is(err, netns.ErrNotExist) || errors.Is(err, netns.ErrNotNetns) {
			return ErrGone
		}
		if err != nil {
			return err
		}
		defer t.close()
		now, err := owner(t, s.Netns, s.Device)
		if err != nil {
			return err
		}
		if now != s.Owner {
			return fmt.Errorf("%w: another device has its name", ErrGone)
		}
	}
	return nil
}

// withFile calls fn with the path of the file that a setting is.
func (h *Host) withFile(s Setting, fn func(path string) error) error {
	switch s.Kind {
	case kindIRQ:
		return fn(h.path("/proc/irq/" + s.Item + "/smp_affinity_list"))
	case kindGovernor:
		return fn(h.path(cpuDir + "/" + s.Item + "/cpufreq/scaling_governor"))
	case kindIdle:
		cpu, state, _ := strings.Cut(s.Item, "/")
		return fn(h.path(cpuDir + "/" + cpu + "/cpuidle/" + state + "/disable"))
	}
	t, err := h.sysfs(s.Netns)
	if err != nil {
		return err
	}
	defer t.close()
	dir := t.dir + "/class/net/" + s.Device
	switch s.Kind {
	case kindThreaded:
		return fn(dir + "/threaded")
	case kindRPS:
		return fn(dir + "/queues/" + s.Item + "/rps_cpus")
	case kindXPS:
		return fn(dir + "/queues/" + s.Item + "/xps_cpus")
	default:
		return fmt.Errorf("no file of kind %q", s.Kind)
	}
}

// effective is what the kernel made of a setting, "" where it says no more than
// the value.
func (h *Host) effective(s Setting) string {
	if s.Kind != kindIRQ {
		return ""
	}
	text, _ := h.read("/proc/irq/" + s.Item + "/effective_affinity_list")
	return text
}

// featureOf has the kernel's names of features.
var featureOf = map[Kind]string{kindGRO: "rx-gro", kindMergeUDP: "rx-udp-gro-forwarding"}

// isTSO recognises the features of TSO by their names: there is one for each kind of
// TCP, and newer kernels have more.
func isTSO(feature string) bool {
	return strings.HasPrefix(feature, "tx-tcp") && strings.HasSuffix(feature, "-segmentation")
}

// tsoOn are the features of TSO that are on, or "off".
func tsoOn(features map[string]bool) string {
	var on []string
	for name, is := range features {
		if is && isTSO(name) {
			on = append(on, name)
		}
	}
	if len(on) == 0 {
		return "off"
	}
	slices.Sort(on)
	return strings.Join(on, "+")
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// schedulers are the policies that threads may have been given.
var schedulers = map[uint32]string{unix.SCHED_NORMAL: "other", unix.SCHED_FIFO: "fifo", unix.SCHED_RR: "rr", unix.SCHED_BATCH: "batch", unix.SCHED_IDLE: "idle"}

// threadsText is "fifo 50 on 1/2" where all threads have one priority, else
// what each has: "fifo 50 on 1; other 0 on 0-3". "" without threads.
func threadsText(threads []Thread) string {
	var priorities, lists, each []string
	for _, t := range threads {
		number := t.Priority
		if t.Policy == unix.SCHED_NORMAL || t.Policy == unix.SCHED_BATCH {
			number = t.Nice
		}
		priority := fmt.Sprintf("%s %d", schedulers[t.Policy], number)
		priorities = append(priorities, priority)
		lists = append(lists, t.CPUs.String())
		each = append(each, priority+" on "+t.CPUs.String())
	}
	switch {
	case len(threads) == 0:
		return ""
	case len(newNames(slices.Clone(priorities))) == 1:
		return priorities[0] + " on " + strings.Join(lists, "/")
	}
	return strings.Join(each, "; ")
}

// threadsValue is one element of that text.
var threadsValue = regexp.MustCompile(`^(\w+) (-?\d+)(?: on (\S+))?$`)

// setThreads gives the threads of a device their priority and places; no value
// leaves them.
func (h *Host) setThreads(s Setting, value string) error {
	if value == "" {
		return nil
	}
	threads, err := h.Kernel.Threads(s.Netns, s.Device)
	if err != nil {
		return err
	}
	if len(threads) == 0 {
		return errNoThread
	}
	elements := strings.Split(value, "; ")
	for i, t := range threads {
		m := threadsValue.FindStringSubmatch(elements[i%len(elements)])
		if m == nil {
			return fmt.Errorf("threads' places %q: want such as \"fifo 50 on 1/2\"", value)
		}
		number, _ := strconv.Atoi(m[2])
		t.Priority, t.Nice = 0, 0
		for policy, name := range schedulers {
			if name == m[1] {
				t.Policy = policy
			}
		}
		if t.Policy == unix.SCHED_NORMAL || t.Policy == unix.SCHED_BATCH {
			t.Nice = number
		} else {
			t.Priority = number
		}
		if m[3] != "" {
			lists := strings.Split(m[3], "/")
			if t.CPUs, err = parseList(lists[i%len(lists)]); err != nil {
				return err
			}
		}
		if err := h.Kernel.SetThread(t); err != nil {
			return err
		}
	}
	return nil
}

// sameThreads reports whether threads are as they were wanted: without places,
// only the priority counts, and places repeat.
func sameThreads(now, want string) bool {
	n, w := threadsValue.FindStringSubmatch(now), threadsValue.FindStringSubmatch(want)
	if n == nil || w == nil {
		return now == want
	}
	if n[1] != w[1] || n[2] != w[2] {
		return false
	}
	if w[3] == "" {
		return true
	}
	places := strings.Split(w[3], "/")
	for i, place := range strings.Split(n[3], "/") {
		if place != places[i%len(places)] {
			return false
		}
	}
	return true
}
