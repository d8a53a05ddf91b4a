package rules

import (
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/nfhooks"
)

// foreignTable stands for the table of a function that is no rule.
const foreignTable = "netfilter"

// Foreign reports whether this is a function at one of Netfilter's hooks, and no
// rule.
func (r Rule) Foreign() bool { return r.Table == foreignTable }

// queueTable stands for the table of what a queue asks.
const queueTable = "queue"

// Queue is what a queue asks of packets, as a rule: conntrack's entry, the route, the socket or the
// input device.
func Queue(at string) Rule {
	return Rule{Table: queueTable, Text: at, Why: "it may ask conntrack or the route, which express packets lack there, or the sender's socket or the input device, which differ"}
}

// OfQueue reports whether this is what a queue asks, and no rule.
func (r Rule) OfQueue() bool { return r.Table == queueTable }

// A function at Netfilter's hooks that is no rule judges single packets for all
// that is known: it is a base chain with one rule, which every packet reaches.
func foreignBases(hooks []nfhooks.Hook) (bases []*base) {
	for _, h := range hooks {
		at, ok := hookNames[h.Family][h.Point]
		if !ok {
			continue
		}
		c := &chain{table: foreignTable, name: string(at)}
		c.rules = []*rule{{chain: c, code: &code{steps: []step{{text: h.String(), why: "a function that is no rule"}}}}}
		bases = append(bases, &base{chain: c, hook: at, families: hookFamilies[h.Family], priority: h.Priority})
	}
	return bases
}

var hookNames = map[uint8]map[uint8]hook{
	unix.NFPROTO_IPV4: ipHooks, unix.NFPROTO_IPV6: ipHooks, unix.NFPROTO_BRIDGE: bridgeHooks,
}

var (
	ipHooks = map[uint8]hook{
		unix.NF_INET_PRE_ROUTING: prerouting, unix.NF_INET_FORWARD: forward, unix.NF_INET_POST_ROUTING: postrouting,
	}
	bridgeHooks = map[uint8]hook{
		unix.NF_INET_PRE_ROUTING: bridgePrerouting, unix.NF_INET_LOCAL_IN: bridgeInput, unix.NF_INET_FORWARD: bridgeForward,
		unix.NF_INET_LOCAL_OUT: bridgeOutput, unix.NF_INET_POST_ROUTING: bridgePostrouting,
	}
)

var hookFamilies = map[uint8][]family{
	unix.NFPROTO_IPV4: {ipv4}, unix.NFPROTO_IPV6: {ipv6}, unix.NFPROTO_BRIDGE: {ipv4, ipv6},
}
