// Package api defines the interface between the services and their clients: the JSON
// documents that commands print with --json, and the HTTP routes on the services' unix
// sockets.
//
// Durations are milliseconds, sizes bytes, counts packets or connections. Pairs [o, r]
// are the connection's original and reply direction.
package api

// States of the express path.
const (
	StateActive = "active" // packets of known connections go express
	StatePaused = "paused" // by `scon pause`: every packet goes regular
	StateInert  = "inert"  // every packet goes regular, for the reason Status.Why
	// StateDown is what scon status prints for a daemon that does not answer while
	// other services run.
	StateDown = "down"
)

// States of a Conentry.
const (
	FlowComposing = "composing" // the decision of the regular path is not recorded yet
	FlowExpress   = "express"   // packets go express
	FlowDiscard   = "discard"   // packets are dropped, as Netfilter did
)

// Regular paths that the packets of a Conentry bypass.
const (
	PathWire       = "wire"       // between a container and another host, by an uplink
	PathContainers = "containers" // between two containers; no decision recorded yet
	PathBridged    = "bridged"    // within a bridge, to a container or by a port that leads out
	PathHairpin    = "hairpin"    // routed or translated back into the bridge, as to a published port
	PathRouted     = "routed"     // routed between bridges, or without a bridge
)

// Directions of a connection, as its container sees it.
const (
	DirectionOut = "out" // the container opened it
	DirectionIn  = "in"  // the other end opened it
)

// Confilter values of a Conentry (Intelligent Packet Processing for Performant Containers
// in IoT, section V-B2).
const (
	ConfilterDiscard = -1
	ConfilterRegular = 0
	ConfilterSuccess = 1
)

// Status is the output of `scon status --json`.
type Status struct {
	// State is `active`, `paused` or `inert`; `down`, with exit status 1, where the daemon
	// does not answer while another service runs.
	State      string      `json:"state"`
	Why        string      `json:"why,omitempty"` // the reason for `inert`
	Kernel     string      `json:"kernel"`        // its release
	Mode       string      `json:"mode"`          // `tcx` or `clsact`
	Generation uint32      `json:"generation"`    // of the decisions
	Rules      Rules       `json:"rules"`         // how the rules are followed
	Table      Table       `json:"table"`         // of the connections
	Hooks      []Hook      `json:"hooks"`         // programs at devices
	Containers []Container `json:"containers"`    // ports of containers that are hooked
	Totals     Totals      `json:"totals"`        // over all containers
	Short      Short       `json:"short"`         // connections of few packets
	// Reasons counts the regular packets at the uplinks by reason; the host's own are among
	// them.
	Reasons map[string]uint64 `json:"reasons"`
	// Skipped lists devices without hooks, and networks of Swarm.
	Skipped []Skipped `json:"skipped"`
	PID     int       `json:"pid"`     // of the daemon
	Version string    `json:"version"` // of the daemon
	// StartedMS is when the daemon began to serve, also by `scon reload`, in milliseconds
	// since 1970.
	StartedMS int64 `json:"started_ms"`
	// Layout is the version of the maps in the kernel: a daemon with the same version
	// takes over the Conentries.
	Layout int `json:"layout"`
	// CPUSeconds is the processor time of the daemon since its start, in seconds.
	CPUSeconds float64 `json:"cpu_s"`
}

// Rules says how the daemon follows the kernel's rules.
type Rules struct {
	Generation uint32  `json:"generation"` // of nftables, as far as the daemon has followed it
	Read       uint64  `json:"read"`       // how often all of them were read
	Retired    uint64  `json:"retired"`    // Conentries that changes concerned
	Unknown    float64 `json:"unknown_s"`  // seconds in which everything was regular, as changed rules were not known
}

// Short says whether connections of few packets go express, too, their ends included
// (`short_connections` in the settings).
type Short struct {
	Express bool   `json:"express"`
	Why     string `json:"why,omitempty"` // why they stay regular
}

// Table says how large the table of Conentries is. It grows on demand.
type Table struct {
	Bytes uint64 `json:"bytes"`         // of the kernel's memory
	Room  int    `json:"room"`          // Conentries that have room without growth
	Limit int    `json:"limit"`         // Conentries that it may grow to
	Why   string `json:"why,omitempty"` // why it could not grow
}

// Hook is one program attached to one device.
type Hook struct {
	Dev     string `json:"dev"`     // device's name
	Ifindex int    `json:"ifindex"` // device's number
	Hook    string `json:"hook"`    // `from_container`, `to_wire`, `from_wire`, `to_container` or `from_netkit`
	Mode    string `json:"mode"`    // `tcx` or `clsact`; of `from_netkit` it is `netkit`
}

// Container is a container's port with the sums of its Conentries.
type Container struct {
	Name            string            `json:"name"`               // as the runtime names it; the device's name if it is not known
	ID              string            `json:"id"`                 // the runtime's identifier, empty if it is not known
	Dev             string            `json:"dev"`                // its port on the host
	Bridge          string            `json:"bridge"`             // "" for a container that is routed
	Entries         int               `json:"entries"`            // Conentries of its connections
	Paused          bool              `json:"paused"`             // paused by `scon pause --container`
	Withheld        string            `json:"withheld,omitempty"` // why the settings keep it regular, absent if they do not
	ExpressPackets  uint64            `json:"express_packets"`    // in both directions
	RegularPackets  uint64            `json:"regular_packets"`    // in both directions
	Reasons         map[string]uint64 `json:"reasons"`            // regular packets by reason, see below
	ExpressSent     Count             `json:"express_sent"`       // of these, from the container
	ExpressReceived Count             `json:"express_received"`   // of these, to the container
	Origin
}

// Origin is what a container was made from, as its engine says. The texts have no control
// characters and at most 384 bytes.
type Origin struct {
	// Image is absent if it is not known; of a pod those of its containers, joined by "+".
	Image   string `json:"image,omitempty"`
	Project string `json:"project,omitempty"` // of Compose
	Service string `json:"service,omitempty"` // of Compose
}

// Count is a number of packets, and their bytes from the IP header on.
type Count struct {
	Packets uint64 `json:"packets"` // number of packets
	Bytes   uint64 `json:"bytes"`   // their bytes, from the IP header on
}

// Totals are sums over all containers since the programs were loaded.
type Totals struct {
	Entries          int    `json:"entries"`           // Conentries in the table
	ExpressPackets   uint64 `json:"express_packets"`   // that went express
	ExpressBytes     uint64 `json:"express_bytes"`     // bytes of these
	RegularPackets   uint64 `json:"regular_packets"`   // that went regular
	DiscardedPackets uint64 `json:"discarded_packets"` // that discards dropped
}

// Skipped is a device without hooks, or a network of Docker Swarm, which another daemon may
// serve.
type Skipped struct {
	Dev    string `json:"dev"`    // device's or network's name
	Reason string `json:"reason"` // why it is not hooked
}

// Tuple is one direction of a connection, as in conntrack.
type Tuple struct {
	Src   string `json:"src"`   // source address
	Sport uint16 `json:"sport"` // source port
	Dst   string `json:"dst"`   // destination address
	Dport uint16 `json:"dport"` // destination port
}

// Flow is one Conentry; `scon flows --json` prints a list of flows.
type Flow struct {
	Container string `json:"container"` // name of the container
	Family    string `json:"family"`    // `ipv4` or `ipv6`
	Proto     string `json:"proto"`     // `tcp` or `udp`
	Orig      Tuple  `json:"orig"`      // addresses as its first packet had them
	Reply     Tuple  `json:"reply"`     // as conntrack has it; if that does not see the connection, the end with the higher port has opened it
	// Direction is `out` if the container opened it, `in` if the other end did.
	Direction string `json:"direction"`
	// Path is what the packets skip: `wire` (to or from outside), `bridged`, `hairpin` (back
	// into the bridge by IP or a translation), `routed` (to another bridge), or `containers`
	// until one of these three was seen.
	Path           string    `json:"way"`
	Peer           string    `json:"peer,omitempty"`      // container at the other end
	Untracked      bool      `json:"untracked,omitempty"` // conntrack does not see it
	State          string    `json:"state"`               // `composing`, `express` or `discard`
	Confilter      int       `json:"confilter"`           // 1, 0; -1 for packets that Netfilter drops
	ExpressPackets [2]uint64 `json:"express_packets"`     // by direction
	ExpressBytes   [2]uint64 `json:"express_bytes"`       // by direction
	// DiscardedPackets counts the packets that a discard dropped; absent for others.
	DiscardedPackets uint64 `json:"discarded_packets,omitempty"`
	// Packets that conntrack counted, all of them regular; absent if it does not count
	// (net.netfilter.nf_conntrack_acct).
	RegularPackets *[2]uint64 `json:"regular_packets,omitempty"`
	RegularBytes   *[2]uint64 `json:"regular_bytes,omitempty"` // bytes of these
	AgeMS          int64      `json:"age_ms"`                  // time since it became a Conentry
	IdleMS         int64      `json:"idle_ms"`                 // time since its last packet
	LeaseMS        int64      `json:"lease_ms"`                // rest of the longer lease; 0 if expired, paused or inert
	// LeaseLimitMS is how long a lease lasts at most; absent for discards.
	LeaseLimitMS int64 `json:"lease_limit_ms,omitempty"`
	// LeasePackets is how many packets of one direction end a lease before; absent for
	// discards.
	LeasePackets uint32 `json:"lease_limit_packets,omitempty"`
	// LeaseBound is which of the two bounds acts, and why; absent for discards.
	LeaseBound string `json:"lease_bound,omitempty"`
	Oif        string `json:"oif"`               // egress device, "" until recorded
	NextHop    string `json:"next_hop"`          // MAC address, "" until recorded
	MTU        int    `json:"mtu"`               // 0 until recorded
	Overlay    string `json:"overlay,omitempty"` // the device that sends packets which bypass the overlay device oif
}

// Explanation is the answer to `scon explain FLOW|CONTAINER`.
type Explanation struct {
	Subject string `json:"subject"` // what was asked about
	Express bool   `json:"express"` // a packet of it goes express
	// Known says that SCON or conntrack knows a connection of the subject, or that it is
	// paused, or kept regular by the settings. If it is false,
	// the subject does not go regular: it has no connections, or none yet.
	Known bool `json:"known"`
	// Findings are sorted by weight; the first decides.
	Findings []Finding `json:"findings"`
	Flows    []Flow    `json:"flows"` // connections that it is about
}

// Finding is one fact about a subject, with its remedy.
type Finding struct {
	Level  string `json:"level"`            // `ok`, `note`, `warn` or `fail`
	What   string `json:"what"`             // what was found
	Why    string `json:"why,omitempty"`    // the reason
	Remedy string `json:"remedy,omitempty"` // what to do
	Rule   *Rule  `json:"rule,omitempty"`   // that the finding is about
}

// Rule is a rule of the packet filter.
type Rule struct {
	Table  string `json:"table"`  // "inet filter"; "iptables-legacy filter"
	Chain  string `json:"chain"`  // name of the chain
	Handle uint64 `json:"handle"` // of nftables; in iptables-legacy the number in its chain
	Text   string `json:"text"`   // nearly as nft prints it
}

// Capability is one line of `scon doctor`.
type Capability struct {
	Name    string `json:"name"`              // of the capability
	Level   string `json:"level"`             // as of a finding
	Found   string `json:"found"`             // state of this machine
	For     string `json:"for"`               // its use by SCON
	Without string `json:"without,omitempty"` // what is lost without it
	Remedy  string `json:"remedy,omitempty"`  // what to do
}

// Preparation is one line of `scon doctor --latency`: a setting that affects latency, or
// that the paper on low latency changed.
type Preparation struct {
	Name   string `json:"name"`             // of the preparation
	Paper  string `json:"paper"`            // the paper's setting
	Level  string `json:"level"`            // `ok`: as in the paper; `note`: different; `unknown`
	Found  string `json:"found"`            // state of this machine
	Remedy string `json:"remedy,omitempty"` // what to do
	// Seen says how to measure the effect on this machine.
	Seen string `json:"seen"`
}

// LatencyDoctor is the output of `scon doctor --latency --json`.
type LatencyDoctor struct {
	Kernel       string        `json:"kernel"`       // release of the kernel
	Preparations []Preparation `json:"preparations"` // what lowers latencies
}

// Doctor is the output of `scon doctor --json`.
type Doctor struct {
	Kernel       string       `json:"kernel"`       // release of the kernel
	Capabilities []Capability `json:"capabilities"` // what the kernel has
	Findings     []Finding    `json:"findings"`     // what keeps packets regular on this machine
}

// Down is what `scon down --json` prints.
type Down struct {
	Stopped     []Stopped `json:"stopped"`        // services that ran
	Left        string    `json:"left,omitempty"` // a directory that containers may have mounted
	Conntrack   string    `json:"conntrack"`      // `keep`, `restore` or `delete`
	Connections []Ended   `json:"connections"`    // those that were liberal in conntrack
}

// Stopped is a service that ran.
type Stopped struct {
	Name string `json:"name"` // `express`, `startup` or `pipe`
	PID  int    `json:"pid"`  // of its process
}

// Ended is a connection that was liberal in conntrack.
type Ended struct {
	Proto   string `json:"proto"`            // `tcp`
	Orig    Tuple  `json:"orig"`             // addresses as its first packet had them
	Outcome string `json:"outcome"`          // `kept`, `restored`, `deleted`, or `lost`: conntrack has forgotten one that was to be restored
	Reason  string `json:"reason,omitempty"` // why it was not restored
}
