// Package doctor looks at a machine, with or without a daemon, with or
// without root: what is here of all that SCON uses, what is lost without it,
// how to mend it.
//
// A thing is tried where that leaves nothing behind; versions and settings are
// read only where it cannot be tried.
package doctor

import "github.com/scon-project/scon/internal/api"

// Levels of a capability and of a finding.
const (
	ok   = "ok"
	note = "note" // a lesser way is taken, or it could not be looked at
	warn = "warn" // something stays regular that need not
	fail = "fail" // no daemon can run
)

// A capability is one thing that SCON uses.
type capability struct {
	name      string
	purpose   string // what SCON uses it for
	without   string // what is lost
	needsRoot bool   // to be looked at
	look      func(h host) sight
}

// sight is what was found of a capability.
type sight struct {
	level  string
	found  string
	remedy string // "" when there is nothing to mend
}

// unseen is what only root could look at; the remedy stands at lookRoot.
var unseen = sight{level: note, found: "not looked at without root"}

// capabilities stand from what nothing works without to what is nice to have.
var capabilities = []capability{
	{
		name: "root", look: lookRoot,
		purpose: "load programs, follow conntrack and rules",
		without: "no daemon; half of this list cannot be looked at",
	},
	{
		name: "kernel", look: lookKernel,
		purpose: "redirect_peer, mmapable arrays, ring buffer, links",
		without: "no daemon",
	},
	{
		name: "BPF", look: lookBPF, needsRoot: true,
		purpose: "the programs of the express way",
		without: "no daemon",
	},
	{
		name: "redirect_peer", look: lookRedirectPeer, needsRoot: true,
		purpose: "put packets straight into a container's namespace",
		without: "no daemon",
	},
	{
		name: "mmapable arrays", look: lookMmapable, needsRoot: true,
		purpose: "place Conentries and read counters without a system call",
		without: "no daemon",
	},
	{
		name: "BPF ring buffer", look: lookRingBuffer, needsRoot: true,
		purpose: "hear of connections to compose and to flush",
		without: "no daemon",
	},
	{
		name: "bpffs", look: lookBPFFS,
		purpose: "keep programs and Conentries over a restart of the daemon",
		without: "no daemon",
	},
	{
		name: "ctnetlink", look: lookConntrack, needsRoot: true,
		purpose: "ask for a connection's NAT and state, hear of its end",
		without: "no daemon",
	},
	{
		name: "BPF JIT", look: lookJIT,
		purpose: "run the programs as machine code",
		without: "they are interpreted, and may cost more than they save",
	},
	{
		name: "tcx", look: lookTCX, needsRoot: true,
		purpose: "attach beside other people's programs",
		without: "clsact is used: about 400 instructions a packet more",
	},
	{
		name: "jiffies", look: lookJiffies, needsRoot: true,
		purpose: "the grain of leases and heartbeat",
	},
	{
		name: "ip_forward", look: lookForward,
		purpose: "the regular way between containers and outside",
		without: "no connection gets through that could go express",
	},
	{
		name: "ipv6_forwarding", look: lookForward6,
		purpose: "the same over IPv6",
		without: "no connection over IPv6 gets through that could go express",
	},
	{
		name: "nftables", look: lookNFTables, needsRoot: true,
		purpose: "hear of every change of rules at once",
		without: "a change of rules is seen when the lease ends, within 1 s",
	},
	{
		name: "iptables-legacy", look: lookLegacy, needsRoot: true,
		purpose: "rules whose changes nothing announces",
	},
	{
		name: "br_netfilter", look: lookBridgeNetfilter,
		purpose: "iptables for packets within one bridge",
		without: "packets within one bridge meet no rule: they are layer 2 only",
	},
	{
		name: "conntrack accounting", look: lookAccounting,
		purpose: "packets and bytes in 'conntrack -L'",
		without: "'scon flows' has SCON's own counters",
	},
	{
		name: "container runtimes", look: lookRuntimes,
		purpose: "the names of containers",
		without: "containers are called by their namespace or port",
	},
	{
		name: "BTF", look: lookBTF,
		purpose: "see why Netfilter drops a packet, for discard entries",
		without: "no discard entries: dropped packets stay regular",
	},
	{
		name: "netkit", look: lookNetkit, needsRoot: true,
		purpose: "container devices without the veth hop",
		without: "veth only, some percent above native",
	},
	{
		name: "nft flowtable", look: lookFlowtable, needsRoot: true,
		purpose: "the rival in 'scon bench'",
		without: "'scon bench' leaves that mode out",
	},
}

// Options are what of the daemon's settings there is to look at.
type Options struct {
	ExactCounters []string // counters of rules that must miss no packet
}

// Examine looks at the machine and at the network namespace of the calling
// goroutine's thread, which must be locked when it is not the process's own.
func Examine(o Options) api.Doctor {
	h := thisHost()
	d := examine(h)
	d.Findings = append(d.Findings, findDevices()...)
	d.Findings = append(d.Findings, findRootless(h)...)
	if h.isRoot() {
		d.Findings = append(d.Findings, findRules(o)...)
		d.Findings = append(d.Findings, findBlind()...)
	}
	return d
}

func examine(h host) api.Doctor { return examineAll(h, capabilities) }

func examineAll(h host, all []capability) api.Doctor {
	d := api.Doctor{Kernel: h.release, Findings: []api.Finding{}}
	for _, c := range all {
		s := unseen
		if h.isRoot() || !c.needsRoot {
			s = c.look(h)
		}
		d.Capabilities = append(d.Capabilities, api.Capability{
			Name: c.name, Level: s.level, Found: s.found,
			For: c.purpose, Without: c.without, Remedy: s.remedy,
		})
	}
	return d
}
