package pin

import "slices"

// Snapshot is all that a plan depends on: the machine as it was at one moment.
type Snapshot struct {
	Kernel string `json:"kernel"`
	// CPUs are those online.
	CPUs []CPU `json:"cpus"`
	// Isolated and NohzFull were taken from the scheduler and from its tick at
	// boot (isolcpus, nohz_full): nothing is placed on them.
	Isolated CPUs     `json:"isolated"`
	NohzFull CPUs     `json:"nohz_full"`
	Devices  []Device `json:"devices"`
	// Containers are those whose processes may not run on every CPU.
	Containers []Container `json:"containers"`
	Irqbalance *Irqbalance `json:"irqbalance,omitempty"` // nil where none runs
}

// CPU is a logical CPU.
type CPU struct {
	ID      int `json:"id"`
	Package int `json:"package"`
	Core    int `json:"core"` // within the package
	Node    int `json:"node"` // NUMA node, 0 where there is only one
	// Governor of its frequency, "" where it cannot be chosen.
	Governor  string   `json:"governor,omitempty"`
	Governors []string `json:"governors,omitempty"` // that there are
	Idle      []Idle   `json:"idle,omitempty"`
}

// Idle is a state that a CPU sleeps in.
type Idle struct {
	State     string `json:"state"` // its directory, "state2"
	Name      string `json:"name"`  // "C6"
	LatencyUS int    `json:"latency_us"`
	Disabled  bool   `json:"disabled"`
}

// Device is a network device, or a network card of which nobody knows a device.
type Device struct {
	Name  string `json:"name"`            // "" if it is in no namespace that was read
	Netns string `json:"netns,omitempty"` // path, "" for this one
	Owner string `json:"owner,omitempty"` // distinguishes it from a later one of that name
	// Address is the hardware's, as 0000:41:00.0 of PCI; "" for veths.
	Address string `json:"address,omitempty"`
	Driver  string `json:"driver"`
	// Node is the NUMA node that the hardware is at, -1 if there is none.
	Node    int      `json:"node"`
	Vectors []Vector `json:"vectors,omitempty"`
	RX      []Queue  `json:"rx"`
	TX      []Queue  `json:"tx"`
	// Threaded is whether threads poll it; nil where the kernel has none.
	Threaded *bool `json:"threaded,omitempty"`
	// MergesUDP is whether GRO merges datagrams that are forwarded; nil where it cannot.
	MergesUDP *bool `json:"merges_udp,omitempty"`
	// Veth is nil for hardware.
	Veth *Veth `json:"veth,omitempty"`
}

// Vector is a hardware interrupt.
type Vector struct {
	IRQ       int    `json:"irq"`
	Name      string `json:"name"` // as in /proc/interrupts
	Affinity  CPUs   `json:"affinity"`
	Effective CPUs   `json:"effective"` // empty where the kernel does not say
}

// Queue is one of a device's.
type Queue struct {
	Name string `json:"name"` // "rx-0"
	// CPUs of RPS or XPS; nil where the queue has no such setting.
	CPUs *CPUs `json:"cpus,omitempty"`
}

// Veth is what decides whether a veth device is polled at all.
type Veth struct {
	GRO       bool   `json:"gro"`
	Peer      string `json:"peer"` // "" if it is in no namespace that was read
	PeerNetns string `json:"peer_netns,omitempty"`
	PeerOwner string `json:"peer_owner,omitempty"`
	PeerTSO   bool   `json:"peer_tso"`
}

// Container has CPUs of its own.
type Container struct {
	Netns string `json:"netns"`
	CPUs  CPUs   `json:"cpus"`
}

// online are all CPUs.
func (s Snapshot) online() CPUs {
	var set CPUs
	for _, c := range s.CPUs {
		set = append(set, c.ID)
	}
	return newCPUs(set...)
}

// node are the CPUs of a NUMA node.
func (s Snapshot) node(n int) CPUs {
	var set CPUs
	for _, c := range s.CPUs {
		if c.Node == n {
			set = append(set, c.ID)
		}
	}
	return newCPUs(set...)
}

// nodes are the NUMA nodes that have CPUs, ascending.
func (s Snapshot) nodes() []int {
	var nodes []int
	for _, c := range s.CPUs {
		nodes = append(nodes, c.Node)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

func (s Snapshot) cpu(id int) CPU {
	for _, c := range s.CPUs {
		if c.ID == id {
			return c
		}
	}
	return CPU{ID: id}
}

// byCore orders a set: one CPU of each core first, then the second ones.
func (s Snapshot) byCore(set CPUs) []int {
	type core struct{ pkg, core int }
	seen := make(map[core]int)
	rank := make(map[int]int)
	for _, id := range set {
		c := s.cpu(id)
		at := core{c.Package, c.Core}
		rank[id] = seen[at]
		seen[at]++
	}
	ordered := slices.Clone([]int(set))
	slices.SortStableFunc(ordered, func(a, b int) int { return rank[a] - rank[b] })
	return ordered
}

// cores is how many cores a set has.
func (s Snapshot) cores(set CPUs) int {
	type core struct{ pkg, core int }
	seen := make(map[core]bool)
	for _, id := range set {
		c := s.cpu(id)
		seen[core{c.Package, c.Core}] = true
	}
	return len(seen)
}

// title is what a device is called in a plan.
func (d Device) title() string {
	if d.Name == "" {
		return d.Address
	}
	return d.Name
}
