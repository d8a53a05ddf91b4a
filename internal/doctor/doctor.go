// Package doctor checks a machine, with or without a daemon, with or
// without root: what SCON needs, what is missing, and how to fix it.
//
// A feature is tried where that leaves nothing behind; versions and settings are
// read where it cannot be tried.
package doctor

import (
	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/host/netns"
)

// Levels of a capability and of a finding.
const (
	ok   = "ok"
	note = "note" // a fallback is used, or the check was not possible
	warn = "warn" // connections stay regular that need not
	fail = "fail" // the daemon cannot run
)

// A capability is a feature of the machine that SCON uses.
type capability struct {
	name      string
	purpose   string // what SCON uses it for
	without   string // what is lost
	needsRoot bool   // for the check
	check     func(h host) result
}

// result is what was found of a capability.
type result struct {
	level  string
	found  string
	remedy string // "" when there is nothing to mend
}

// unchecked is the result of a check that needs root; checkRoot has the remedy.
var unchecked = result{level: note, found: "not checked: needs root"}

// capabilities are ordered from required to optional.
var capabilities = []capability{
	{
		name: "root", check: checkRoot,
		purpose: "load programs, track conntrack and rules",
		without: "no daemon; half of these checks are skipped",
	},
	{
		name: "kernel", check: checkKernel,
		purpose: "redirect_peer, mmapable arrays, ring buffer, links",
		without: "no daemon",
	},
	{
		name: "BPF", check: checkBPF, needsRoot: true,
		purpose: "express programs",
		without: "no daemon",
	},
	{
		name: "redirect_peer", check: checkRedirectPeer, needsRoot: true,
		purpose: "deliver packets directly into a container's namespace",
		without: "no daemon",
	},
	{
		name: "mmapable arrays", check: checkMmapable, needsRoot: true,
		purpose: "write Conentries and read counters without a system call",
		without: "no daemon",
	},
	{
		name: "BPF ring buffer", check: checkRingBuffer, needsRoot: true,
		purpose: "report connections to compose and to flush",
		without: "no daemon",
	},
	{
		name: "bpffs", check: checkBPFFS,
		purpose: "keep programs and Conentries across a restart of the daemon",
		without: "no daemon",
	},
	{
		name: "ctnetlink", check: checkConntrack, needsRoot: true,
		purpose: "read a connection's NAT and state, and be notified of its end",
		without: "no daemon",
	},
	{
		name: "BPF JIT", check: checkJIT,
		purpose: "run the programs as machine code",
		without: "programs are interpreted and may cost more than they save",
	},
	{
		name: "tcx", check: checkTCX, needsRoot: true,
		purpose: "attach beside programs of others",
		without: "clsact is used, which costs more for each packet",
	},
	{
		name: "jiffies", check: checkJiffies, needsRoot: true,
		purpose: "resolution of leases and heartbeat",
	},
	{
		name: "ip_forward", check: checkForward,
		purpose: "the kernel's path between containers and other machines",
		without: "no connection is forwarded, so none goes express",
	},
	{
		name: "ipv6_forwarding", check: checkForward6,
		purpose: "the kernel's path between containers and other machines, by IPv6",
		without: "no IPv6 connection is forwarded, so none goes express",
	},
	{
		name: "nftables", check: checkNFTables, needsRoot: true,
		purpose: "be notified of rule changes",
		without: "a rule change takes effect when the lease ends, within 1 s",
	},
	{
		name: "iptables-legacy", check: checkLegacy, needsRoot: true,
		purpose: "rules that send no change notification",
	},
	{
		name: "br_netfilter", check: checkBridgeNetfilter,
		purpose: "iptables for packets within one bridge",
		without: "packets within one bridge pass no rule",
	},
	{
		name: "conntrack accounting", check: checkAccounting,
		purpose: "packets and bytes in 'conntrack -L'",
		without: "use the counters of 'scon flows'",
	},
	{
		name: "container runtimes", check: checkRuntimes,
		purpose: "container names",
		without: "containers are named by their namespace or port",
	},
	{
		name: "BTF", check: checkBTF,
		purpose: "learn why Netfilter drops a packet, for discard entries",
		without: "no discard entries: dropped packets stay regular",
	},
	{
		name: "netkit", check: checkNetkit, needsRoot: true,
		purpose: "container devices without the cost of veth",
		without: "veth only, some percent above native",
	},
	{
		name: "nft flowtable", check: checkFlowtable, needsRoot: true,
		purpose: "the mode flowtable of 'scon bench'",
		without: "'scon bench' skips that mode",
	},
}

// Options are the daemon's settings that checks depend on.
type Options struct {
	ExactCounters []string // counters of rules that must miss no packet
}

// ExamineIn is Examine for a network namespace as given by --netns. This process's own, "",
// needs no privilege to enter.
func ExamineIn(namespace string, o Options) (d api.Doctor, err error) {
	if namespace == "" {
		return Examine(o), nil
	}
	err = netns.Do(namespace, func() error {
		d = Examine(o)
		return nil
	})
	return d, err
}

// Examine checks the machine and the network namespace of the calling
// goroutine's thread, which must be locked when it is not the process's own.
func Examine(o Options) api.Doctor {
	h := thisHost()
	d := examine(h)
	d.Findings = append(d.Findings, findDevices()...)
	d.Findings = append(d.Findings, findRootless(h)...)
	d.Findings = append(d.Findings, findSpeed(h)...)
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
		s := unchecked
		if h.isRoot() || !c.needsRoot {
			s = c.check(h)
		}
		d.Capabilities = append(d.Capabilities, api.Capability{
			Name: c.name, Level: s.level, Found: s.found,
			For: c.purpose, Without: c.without, Remedy: s.remedy,
		})
	}
	return d
}
