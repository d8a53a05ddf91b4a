package profile

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf/link"
	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// hook is one of IPv4's hooks, by Netfilter's number.
type hook = link.NetfilterInetHook

// noHook is at no hook.
const noHook hook = math.MaxUint32

var hookNames = map[hook]string{
	link.NetfilterInetPreRouting:  "prerouting",
	link.NetfilterInetLocalIn:     "input",
	link.NetfilterInetForward:     "forward",
	link.NetfilterInetLocalOut:    "output",
	link.NetfilterInetPostRouting: "postrouting",
}

// First and last priority that the kernel allows for programs. Those beyond belong
// to br_netfilter and to conntrack, which confirms new connections there.
const (
	firstPriority = math.MinInt32 + 1
	lastPriority  = math.MaxInt32 - 1
)

// Priorities of the functions of the kernel and of iptables-legacy.
const (
	priorityRaw       = -300
	priorityConntrack = -200
	priorityMangle    = -150
	priorityNATDest   = -100
	priorityFilter    = 0
	prioritySecurity  = 50
	priorityNATSource = 100
)

// mostSpans of a hook; the last one holds all later functions.
const mostSpans = 6

// span is a group of functions of a hook between two waypoints.
type span struct {
	last   int32    // priority of its last function
	chains []string // base chains, and the kernel's functions by name
	rules  bool     // whether chains has rules of a user
}

// function is a function that is registered at a hook.
type function struct {
	priority int32
	name     string
	rules    bool
}

// registered holds the functions of each hook, in any order.
type registered map[hook][]function

// readSpans lists the functions registered at the IPv4 hooks of the calling
// thread's namespace.
func readSpans() (map[hook][]span, error) {
	found := kernelFunctions()
	if err := found.addNFTables(); err != nil {
		return nil, fmt.Errorf("list the chains of nftables: %w", err)
	}
	names, err := os.ReadFile("/proc/thread-self/net/ip_tables_names")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the tables of iptables-legacy: %w", err)
	}
	found.addLegacy(strings.Fields(string(names)))

	spans := make(map[hook][]span)
	for h := range hookNames {
		spans[h] = divide(found[h])
	}
	return spans, nil
}

// kernelFunctions returns conntrack's functions. They are always included, since
// the kernel does not report whether they are registered. No waypoint fits behind
// the last one, which confirms new connections.
func kernelFunctions() registered {
	found := make(registered)
	for _, h := range []hook{link.NetfilterInetPreRouting, link.NetfilterInetLocalOut} {
		found[h] = append(found[h], function{priority: priorityConntrack, name: "conntrack"})
	}
	return found
}

// addNFTables adds the base chains of nftables and iptables-nft.
func (r registered) addNFTables() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	chains, err := conn.ListChains()
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) { // a kernel without nftables
		return nil
	}
	if err != nil {
		return err
	}
	families := map[nftables.TableFamily]string{
		nftables.TableFamilyIPv4: "ip", nftables.TableFamilyINet: "inet",
	}
	for _, c := range chains {
		family := families[c.Table.Family]
		if family == "" || c.Hooknum == nil || c.Priority == nil || hookNames[hook(*c.Hooknum)] == "" {
			continue
		}
		h, priority := hook(*c.Hooknum), int32(*c.Priority)
		name := fmt.Sprintf("%s %s %s", family, c.Table.Name, c.Name)
		if c.Type == nftables.ChainTypeNAT {
			r.addNAT(h, name)
			continue
		}
		r[h] = append(r[h], function{priority, name, true})
	}
	return nil
}

// addNAT adds a chain of address translation. The kernel has one function for all
// of them, which translates known connections without evaluating a rule.
func (r registered) addNAT(h hook, name string) {
	priority := int32(priorityNATSource)
	if h == link.NetfilterInetPreRouting || h == link.NetfilterInetLocalOut {
		priority = priorityNATDest
	}
	r[h] = append(r[h], function{priority, "NAT: " + name, true})
}

// addLegacy adds tables of iptables-legacy.
func (r registered) addLegacy(tables []string) {
	all := slices.Collect(maps.Keys(hookNames))
	places := map[string]struct {
		priority int32
		hooks    []hook
	}{
		"raw":      {priorityRaw, []hook{link.NetfilterInetPreRouting, link.NetfilterInetLocalOut}},
		"mangle":   {priorityMangle, all},
		"filter":   {priorityFilter, []hook{link.NetfilterInetLocalIn, link.NetfilterInetForward, link.NetfilterInetLocalOut}},
		"security": {prioritySecurity, []hook{link.NetfilterInetLocalIn, link.NetfilterInetForward, link.NetfilterInetLocalOut}},
	}
	for _, table := range tables {
		if table == "nat" {
			for _, h := range all {
				if h != link.NetfilterInetForward {
					r.addNAT(h, "iptables-legacy nat")
				}
			}
			continue
		}
		for _, h := range places[table].hooks {
			r[h] = append(r[h], function{places[table].priority, "iptables-legacy " + table, true})
		}
	}
}

// divide groups functions into spans: functions of the same priority, and functions
// without a free priority between them for a waypoint.
func divide(functions []function) (spans []span) {
	functions = slices.Clone(functions)
	slices.SortStableFunc(functions, func(a, b function) int { return int(int64(a.priority) - int64(b.priority)) })
	for _, f := range functions {
		if n := len(spans); n > 0 && (int64(f.priority)-int64(spans[n-1].last) <= 1 || n == mostSpans) {
			s := &spans[n-1]
			s.last, s.rules = f.priority, s.rules || f.rules
			s.chains = append(s.chains, f.name)
			continue
		}
		spans = append(spans, span{f.priority, []string{f.name}, f.rules})
	}
	return spans
}

// priorities returns the priorities of the waypoints around spans: before all,
// after each, and the last after everything.
func priorities(spans []span) []int32 {
	at := []int32{firstPriority}
	for i, s := range spans {
		if i < len(spans)-1 {
			at = append(at, s.last+1)
		}
	}
	return append(at, lastPriority)
}
