// Package topology builds nodes and links for measurements, from a file in the format
// of containerlab.
//
// Steps of a topology:
//
//  1. Load checks the file: its syntax, the schema (schema.json), and rules that a
//     schema cannot express, such as that the ends of links are nodes. Line makes
//     the line topology of "Applicability of Hardware-Supported Containers in
//     Low-Latency Networking", III, without a file.
//  2. Up writes a record of the topology, builds nodes, links and routes, and routes
//     the flows by their UDP destination ports.
//  3. Down undoes what the record lists, also after a crash, and moves devices of
//     the host back.
package topology

import (
	_ "embed"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Schema is the JSON schema of the file.
//
//go:embed schema.json
var Schema string

// Topology is the content of a file.
type Topology struct {
	Name  string `json:"name"`
	Nodes []Node `json:"nodes"` // in the file's order
	Links []Link `json:"links"`
	Flows []Flow `json:"flows,omitempty"`
}

// Kinds of nodes.
const (
	Netns  = "netns" // a network namespace
	Docker = "linux" // a Docker container, by containerlab's name
)

// Node is a namespace or a container.
type Node struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`
	Image string `json:"image,omitempty"`
	Cmd   string `json:"cmd,omitempty"`
	// CPUs are the CPUs of the node's processes; none means all.
	CPUs []int `json:"cpus,omitempty"`
}

// Types of links.
const (
	Veth       = "veth"
	Macvlan    = "macvlan"
	SRIOV      = "sriov"
	HostDevice = "host-device"
)

// Link connects two nodes, or a node with a device outside of the topology.
type Link struct {
	Type string `json:"type"`
	Ends []End  `json:"ends"` // one or two
	Mode string `json:"mode,omitempty"`
	VLAN int    `json:"vlan,omitempty"` // 0: none
	MTU  int    `json:"mtu,omitempty"`  // 0: the kernel's default
	// Delay, Jitter and Loss (in percent) hold in each direction.
	Delay  time.Duration `json:"delay,omitempty"`
	Jitter time.Duration `json:"jitter,omitempty"`
	Loss   float64       `json:"loss,omitempty"`
}

// impaired reports whether the link needs netem.
func (l Link) impaired() bool { return l.Delay != 0 || l.Jitter != 0 || l.Loss != 0 }

// End is a link's device in a node.
type End struct {
	Node      string       `json:"node"`
	Interface string       `json:"interface"`
	IPv4      netip.Prefix `json:"ipv4,omitzero"`
	Host      string       `json:"host_interface,omitempty"`
	VF        int          `json:"vf"` // noVF unless the link is SRIOV
}

// noVF is the value of End.VF without a virtual function.
const noVF = -1

// Flow is a flow that is routed by its UDP destination port.
type Flow struct {
	Port uint16 `json:"port"`
	// Path has every node from ingress to egress.
	Path []string `json:"path"`
}

// MaxLine is the maximum number of forwarding nodes of a Line.
const MaxLine = 64

// Ends of a line: In sends, Out receives.
const (
	In  = "in"
	Out = "out"
)

// Forwarder returns the name of a line's n-th forwarding node, counted from 1.
func Forwarder(n int) string { return fmt.Sprintf("n%d", n) }

// Line returns a line topology: In, n forwarding nodes, Out. Every node has the
// interface "left" or "right", or both.
func Line(name string, n int) (*Topology, error) {
	if n < 1 || n > MaxLine {
		return nil, fmt.Errorf("a line of %d nodes: want 1 to %d", n, MaxLine)
	}
	t := &Topology{Name: name, Nodes: []Node{{Name: In, Kind: Netns}}}
	for i := 1; i <= n; i++ {
		t.Nodes = append(t.Nodes, Node{Name: Forwarder(i), Kind: Netns})
	}
	t.Nodes = append(t.Nodes, Node{Name: Out, Kind: Netns})
	for i := range n + 1 {
		t.Links = append(t.Links, Link{Type: Veth, Ends: []End{
			{Node: t.Nodes[i].Name, Interface: Right, VF: noVF},
			{Node: t.Nodes[i+1].Name, Interface: Left, VF: noVF},
		}})
	}
	t.number()
	return t, nil
}

// Interfaces of the nodes of a Line.
const (
	Left  = "left"
	Right = "right"
)

// Networks of the addresses of links and nodes without addresses in the file.
var (
	linkNet = netip.MustParseAddr("10.99.0.0")
	nodeNet = netip.MustParseAddr("10.98.0.0")
	ownNets = netip.MustParsePrefix("10.98.0.0/15")
)

// offset returns the n-th address after addr.
func offset(addr netip.Addr, n int) netip.Addr {
	a := addr.As4()
	n += int(a[2])<<8 | int(a[3])
	a[2], a[3] = byte(n>>8), byte(n)
	return netip.AddrFrom4(a)
}

// number assigns addresses to links between two nodes that have none.
func (t *Topology) number() {
	for i := range t.Links {
		ends := t.Links[i].Ends
		if len(ends) < 2 || ends[0].IPv4.IsValid() || ends[1].IPv4.IsValid() {
			continue
		}
		for j := range ends {
			ends[j].IPv4 = netip.PrefixFrom(offset(linkNet, 2*i+j), 31)
		}
	}
}

// Addr returns a node's own address, at which all nodes reach it.
func (t *Topology) Addr(node string) netip.Addr {
	return offset(nodeNet, t.index(node)+1)
}

// index returns the index of a node, -1 if there is none of that name.
func (t *Topology) index(node string) int {
	return slices.IndexFunc(t.Nodes, func(n Node) bool { return n.Name == node })
}

// Egress returns the device by which a node sends to a neighbour, "" if the two are
// not neighbours.
func (t *Topology) Egress(node, neighbour string) string {
	h, _ := t.graph().segment(node, neighbour)
	return h.dev
}
