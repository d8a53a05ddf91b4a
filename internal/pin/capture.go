package pin

import (
	"fmt"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
)

// Capture reads the machine.
func (h *Host) Capture() (Snapshot, error) {
	s := Snapshot{Devices: []Device{}, Containers: []Container{}, Isolated: CPUs{}, NohzFull: CPUs{}}
	s.Kernel, _ = h.read("/proc/sys/kernel/osrelease")
	if err := h.cpus(&s); err != nil {
		return Snapshot{}, fmt.Errorf("read the CPUs: %w", err)
	}
	if !h.OnlyNetns {
		irqbalance, err := h.findIrqbalance()
		if err != nil {
			return Snapshot{}, fmt.Errorf("read the state of irqbalance: %w", err)
		}
		s.Irqbalance = irqbalance
	}
	var err error
	if s.Containers, err = h.containers(s.online()); err != nil {
		return Snapshot{}, fmt.Errorf("read the containers: %w", err)
	}
	if s.Devices, err = h.devices(); err != nil {
		return Snapshot{}, fmt.Errorf("read the network devices: %w", err)
	}
	return s, nil
}

const cpuDir = "/sys/devices/system/cpu"

// cpus reads the CPUs and their boot options.
func (h *Host) cpus(s *Snapshot) error {
	text, err := h.read(cpuDir + "/online")
	if err != nil {
		return err
	}
	online, err := parseList(text)
	if err != nil {
		return err
	}
	if len(online) == 0 {
		return fmt.Errorf("%s/online is empty", cpuDir)
	}
	nodes, err := h.nodes()
	if err != nil {
		return err
	}
	for _, id := range online {
		c := CPU{ID: id, Node: nodes[id]}
		dir := fmt.Sprintf("%s/cpu%d", cpuDir, id)
		c.Package = h.number(dir+"/topology/physical_package_id", 0)
		c.Core = h.number(dir+"/topology/core_id", id)
		c.Governor, _ = h.read(dir + "/cpufreq/scaling_governor")
		governors, _ := h.read(dir + "/cpufreq/scaling_available_governors")
		c.Governors = strings.Fields(governors)
		c.Idle = h.idle(dir)
		s.CPUs = append(s.CPUs, c)
	}
	for name, set := range map[string]*CPUs{"isolated": &s.Isolated, "nohz_full": &s.NohzFull} {
		text, err := h.read(cpuDir + "/" + name)
		if err != nil {
			continue // a kernel without it
		}
		if *set, err = parseList(text); err != nil {
			return fmt.Errorf("read the %s CPUs: %w", name, err)
		}
	}
	return nil
}

// nodes are the NUMA nodes of CPUs; without NUMA all are 0.
func (h *Host) nodes() (map[int]int, error) {
	nodes := make(map[int]int)
	dirs, err := filepath.Glob(h.path("/sys/devices/system/node/node[0-9]*"))
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "node"))
		if err != nil {
			continue
		}
		text, err := readFile(filepath.Join(dir, "cpulist"))
		if err != nil {
			return nil, err
		}
		set, err := parseList(text)
		if err != nil {
			return nil, fmt.Errorf("read the CPUs of node %d: %w", n, err)
		}
		for _, id := range set {
			nodes[id] = n
		}
	}
	return nodes, nil
}

// idle are the idle states of a CPU.
func (h *Host) idle(cpu string) []Idle {
	dirs, _ := filepath.Glob(h.path(cpu + "/cpuidle/state[0-9]*"))
	var states []Idle
	for _, dir := range dirs {
		name, err := readFile(dir + "/name")
		if err != nil {
			continue
		}
		disabled, _ := readFile(dir + "/disable")
		latency, _ := readFile(dir + "/latency")
		us, _ := strconv.Atoi(latency)
		states = append(states, Idle{State: filepath.Base(dir), Name: name, LatencyUS: us, Disabled: disabled == "1"})
	}
	sort.SliceStable(states, func(i, j int) bool { return states[i].LatencyUS < states[j].LatencyUS })
	return states
}

func (h *Host) number(name string, otherwise int) int {
	text, err := h.read(name)
	if err != nil {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return otherwise
	}
	return n
}

// allowed is the line of /proc/PID/status with the CPUs that a process may use.
var allowed = regexp.MustCompile(`(?m)^Cpus_allowed_list:\s*(\S*)$`)

// containers are the namespaces whose processes are restricted to some CPUs.
func (h *Host) containers(online CPUs) ([]Container, error) {
	found := []Container{}
	for _, ns := range h.Namespaces {
		if ns.PID == 0 {
			continue // a name only
		}
		status, err := h.read(fmt.Sprintf("/proc/%d/status", ns.PID))
		if err != nil {
			continue // gone meanwhile
		}
		m := allowed.FindStringSubmatch(status)
		if m == nil {
			continue
		}
		cpus, err := parseList(m[1])
		if err != nil {
			return nil, fmt.Errorf("read the CPUs of process %d: %w", ns.PID, err)
		}
		if cpus = cpus.and(online); len(cpus) < len(online) {
			found = append(found, Container{Netns: ns.Path, CPUs: cpus})
		}
	}
	return found, nil
}
