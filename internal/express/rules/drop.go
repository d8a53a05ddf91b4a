package rules

import (
	"net/netip"
	"slices"

	"github.com/scon-project/scon/internal/express/conntrack"
)

// Flow is the packets of one tuple that a container sends and that belong to
// no connection: no fragments, without IP options, addressed to the bridge's
// own MAC address. Empty fields are not known.
type Flow struct {
	Tuple   conntrack.Tuple
	Port    Device   // the container's bridge port
	Inside  []Device // IP sees them come by one of these
	Outside []Device // and routes them to one of these
	// Routed means that no bridge sees them: a route leads to the port.
	Routed bool
	// Forwarded means that their destination is another host.
	Forwarded bool
}

// Discardable reports whether the rules drop every packet of a flow, whatever
// its contents, and do nothing else that needs the packet itself: answer, log,
// queue, count for a limit. It returns the rule that drops, otherwise one that
// needs the packets, if there is any.
//
// The ruleset must have been read with Options.Drops. The caller makes sure
// that conntrack has no connection of that tuple and gets none from the other
// side, and that nothing answers before the rules: the TTL, the MTU, routing.
func (r Ruleset) Discardable(f Flow) (by Rule, ok bool) {
	if !r.opts.Drops {
		return Rule{}, false
	}
	w := newWalk(f)
	translated := w.translated(r.whole)
	// An unknown state stands for untracked, and for other zones.
	for _, w.state = range []uint16{stateNew, stateInvalid, 0, stateRelated} {
		if w.state == 0 && !w.retracks || w.state == stateRelated && !r.expects {
			continue
		}
		if w.state == stateRelated { // a helper may translate as well
			w.conn.Reply.Src, translated = netip.AddrPort{}, true
		}
		if !w.dropped(r.whole, forward) || (translated || !f.Forwarded) && !w.dropped(r.whole, input) {
			return w.needing, false
		}
	}
	return w.by, true
}

// walk is the traversal of base chains by the packets of a flow.
type walk struct {
	machine
	conn    Conn
	routed  bool   // Flow.Routed
	state   uint16 // conntrack's
	by      Rule   // drops them
	needing Rule   // needs them
}

func newWalk(f Flow) *walk {
	w := &walk{routed: f.Routed, conn: Conn{
		Conn: conntrack.Conn{Orig: f.Tuple},
		Port: f.Port, Inside: f.Inside, Outside: f.Outside,
	}}
	// Their source after translation is not known.
	w.conn.Reply.Proto, w.conn.Reply.Src = f.Tuple.Proto, f.Tuple.Dst
	w.hit = func(r *rule, why string) bool {
		w.needing = r.describe(why)
		return false
	}
	return w
}

// translated reports whether the packets may get another destination, which is
// not known.
func (w *walk) translated(bases []*base) bool {
	w.state = stateNew
	for _, b := range bases {
		if b.nat && b.hook == prerouting {
			w.through(b)
		}
	}
	if w.translates {
		w.conn.Reply.Src = netip.AddrPort{}
	}
	return w.translates
}

// dropped reports whether the packets are dropped if they are routed to the
// forward or the input hook, and no rule before that needs them.
func (w *walk) dropped(bases []*base, way hook) bool {
	before := []hook{ingress, prerouting}
	if !w.routed {
		before = append(before, bridgePrerouting, bridgeInput)
	}
	// With br_netfilter, the order of IP's chains and the bridge's differs.
	dropped := w.anywhere(bases, before...) ||
		w.inOrder(bases, way) || way == forward && w.inOrder(bases, postrouting)
	return dropped && !w.stopped
}

// anywhere follows packets through the base chains of hooks in any order.
func (w *walk) anywhere(bases []*base, hooks ...hook) (dropped bool) {
	for _, b := range bases {
		if slices.Contains(hooks, b.hook) && w.through(b) {
			dropped = true
		}
	}
	return dropped
}

// inOrder follows packets through the base chains of a hook until one drops
// all. Chains of one priority have no order.
func (w *walk) inOrder(bases []*base, at hook) (dropped bool) {
	var priority int32
	for _, b := range bases {
		if b.hook != at {
			continue
		}
		if dropped && b.priority != priority {
			break
		}
		priority = b.priority
		dropped = w.through(b) || dropped
	}
	return dropped
}

// through follows packets through a base chain and reports whether it drops
// all.
func (w *walk) through(b *base) bool {
	if b.nat && w.state == stateInvalid {
		return false
	}
	var left outcome
	b.firstForms(&w.conn, w.state, func(f *form) {
		w.form, w.budget = f, maxRules
		after := w.run(b.chain, 0)
		if after&passed != 0 && b.drops {
			after = after&^passed | dropped
			w.dropper = &rule{chain: b.chain, code: &code{ending: "policy drop"}}
		}
		left |= after
	})
	// An ingress chain belongs to some devices only, and one of type nat sees
	// only connections.
	if w.stopped || left != dropped || b.hook == ingress || b.nat && !begins(w.state) {
		return false
	}
	w.by = w.dropper.describe("drop")
	return true
}
