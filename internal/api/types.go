// Package api is the contract between the daemon and its clients: the JSON
// documents that every reading command prints with --json, and the HTTP
// routes that carry them over the daemon's unix socket.
//
// Durations are milliseconds, sizes bytes, counts packets or connections.
// Pairs [o, r] are the connection's original and reply direction.
package api

// State of a daemon's express way.
const (
	StateActive = "active" // packets of known connections go express
	StatePaused = "paused" // by `scon pause`: every packet goes regular
	StateInert  = "inert"  // Status.Why: the programs send every packet regular
)

// State of one Conentry.
const (
	FlowComposing = "composing" // waiting to see what the regular way decides
	FlowExpress   = "express"   // decided; packets go express
	FlowDiscard   = "discard"   // an observed Netfilter drop is remembered
)

// Way of a Conentry: the regular one that its packets do without.
const (
	WayWire       = "wire"       // between a container and outside, by an uplink
	WayContainers = "containers" // between two containers; no decision was seen yet
	WayBridged    = "bridged"    // within a bridge
	WayHairpin    = "hairpin"    // by IP or a translation back into the bridge, as to a published port
	WayRouted     = "routed"     // by IP, from one bridge to another or without any
)

// Confilter values of a Conentry (scon.txt, section V-B2).
const (
	ConfilterDiscard = -1
	ConfilterRegular = 0
	ConfilterSuccess = 1
)

// Status is what `scon status --json` prints.
type Status struct {
	State      string      `json:"state"`
	Why        string      `json:"why,omitempty"` // of StateInert
	Kernel     string      `json:"kernel"`
	Mode       string      `json:"mode"` // "tcx" or "clsact"
	Generation uint32      `json:"generation"`
	Hooks      []Hook      `json:"hooks"`
	Containers []Container `json:"containers"`
	Totals     Totals      `json:"totals"`
	// Reasons counts why packets at the uplinks stayed regular.
	Reasons map[string]uint64 `json:"reasons"`
	// Skipped names devices that are not hooked, and why.
	Skipped []Skipped `json:"skipped"`
	PID     int       `json:"pid"`
	Version string    `json:"version"`
	// Layout is the version of the maps in the kernel: the next daemon takes
	// Conentries over if it has the same.
	Layout int `json:"layout"`
}

// Hook is one program attached to one device.
type Hook struct {
	Dev     string `json:"dev"`
	Ifindex int    `json:"ifindex"`
	Hook    string `json:"hook"` // from_container, to_wire, from_wire, to_container
	Mode    string `json:"mode"` // "tcx" or "clsact"
}

// Container is one container's port and its Contable in sum.
type Container struct {
	Name           string            `json:"name"`
	ID             string            `json:"id"`
	Dev            string            `json:"dev"`
	Bridge         string            `json:"bridge"`
	Entries        int               `json:"entries"`
	Paused         bool              `json:"paused"`
	ExpressPackets uint64            `json:"express_packets"`
	RegularPackets uint64            `json:"regular_packets"`
	Reasons        map[string]uint64 `json:"reasons"` // why packets went regular
	// What it sent and received express: together its ExpressPackets.
	ExpressSent     Count `json:"express_sent"`
	ExpressReceived Count `json:"express_received"`
}

// Count is a number of packets, and their bytes from the IP header on.
type Count struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Totals sums over all containers since the programs were loaded.
type Totals struct {
	Entries          int    `json:"entries"`
	ExpressPackets   uint64 `json:"express_packets"`
	ExpressBytes     uint64 `json:"express_bytes"`
	RegularPackets   uint64 `json:"regular_packets"`
	DiscardedPackets uint64 `json:"discarded_packets"`
}

// Skipped is a device that stays without hooks.
type Skipped struct {
	Dev    string `json:"dev"`
	Reason string `json:"reason"`
}

// Tuple is one direction of a connection as conntrack writes it.
type Tuple struct {
	Src   string `json:"src"`
	Sport uint16 `json:"sport"`
	Dst   string `json:"dst"`
	Dport uint16 `json:"dport"`
}

// Flow is one Conentry; `scon flows --json` prints a list of them.
type Flow struct {
	Container      string    `json:"container"`
	Family         string    `json:"family"` // "ipv4" or "ipv6"
	Proto          string    `json:"proto"`  // "tcp" or "udp"
	Orig           Tuple     `json:"orig"`
	Reply          Tuple     `json:"reply"`
	Way            string    `json:"way"`                 // Way*
	Peer           string    `json:"peer,omitempty"`      // the container at the other end
	Untracked      bool      `json:"untracked,omitempty"` // conntrack does not see it
	State          string    `json:"state"`
	Confilter      int       `json:"confilter"`
	ExpressPackets [2]uint64 `json:"express_packets"`
	ExpressBytes   [2]uint64 `json:"express_bytes"`
	// DiscardedPackets are those that a discard has dropped; absent for others.
	DiscardedPackets uint64 `json:"discarded_packets,omitempty"`
	// What conntrack counted of the connection, all of it regular; absent if
	// it does not count (net.netfilter.nf_conntrack_acct).
	RegularPackets *[2]uint64 `json:"regular_packets,omitempty"`
	RegularBytes   *[2]uint64 `json:"regular_bytes,omitempty"`
	AgeMS          int64      `json:"age_ms"`
	IdleMS         int64      `json:"idle_ms"`
	LeaseMS        int64      `json:"lease_ms"` // what is left of the longer lease, 0 when over
	Oif            string     `json:"oif"`      // "" until the way out was seen
	NextHop        string     `json:"next_hop"` // MAC address, "" until seen
	MTU            int        `json:"mtu"`      // 0 until seen
	// Overlay is the device that packets are put on if they skip Oif, an
	// overlay's, and have its headers already; absent if they do not.
	Overlay string `json:"overlay,omitempty"`
}

// Explanation answers `scon explain FLOW|CONTAINER`.
type Explanation struct {
	Subject string `json:"subject"`
	Express bool   `json:"express"`
	// Findings are in order of weight; the first decides.
	Findings []Finding `json:"findings"`
	Flows    []Flow    `json:"flows"`
}

// Finding is one fact about a subject, and what to do about it.
type Finding struct {
	Level  string `json:"level"` // "ok", "note", "warn", "fail"
	What   string `json:"what"`
	Why    string `json:"why,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

// Capability is one row of `scon doctor`.
type Capability struct {
	Name    string `json:"name"`
	Level   string `json:"level"` // as Finding.Level
	Found   string `json:"found"` // what this machine has
	For     string `json:"for"`   // what SCON uses it for
	Without string `json:"without,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
}

// Preparation is one row of `scon doctor --latency`: something about a machine
// that matters to latency, or that the paper on it has changed.
type Preparation struct {
	Name   string `json:"name"`
	Paper  string `json:"paper"` // what the paper did
	Level  string `json:"level"` // "ok": as in the paper; "note": not so; "unknown"
	Found  string `json:"found"` // what this machine has
	Remedy string `json:"remedy,omitempty"`
	// Seen says how to measure on this machine whether it matters.
	Seen string `json:"seen"`
}

// LatencyDoctor is what `scon doctor --latency --json` prints.
type LatencyDoctor struct {
	Kernel       string        `json:"kernel"`
	Preparations []Preparation `json:"preparations"`
}

// Doctor is what `scon doctor --json` prints.
type Doctor struct {
	Kernel       string       `json:"kernel"`
	Capabilities []Capability `json:"capabilities"`
	Findings     []Finding    `json:"findings"`
}
