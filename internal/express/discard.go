package express

import (
	"errors"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/rules"
)

// Discards (Confilter -1 of scon.txt, section V-B2): connections of which
// conntrack knows nothing because the rules drop every packet. Both must be
// certain: the rules say so, and the kernel is seen to drop one packet for each
// short lease.

// dropRules are the rules read with all that decides about first packets. That
// takes longer than what Conentries need, so it is done only when a connection
// seems to be dropped, and not again before the rules change.
type dropRules struct {
	read  uint64 // the policy's, when they were read
	rules rules.Ruleset
	err   error
}

// discard places a discard for a connection that conntrack does not know, if
// the rules drop it.
func (d *Daemon) discard(p *port, tuple conntrack.Tuple, now time.Time) (refused string) {
	if d.dp.Discards() != nil || !d.discardable(p, tuple, now) {
		return refusedUntracked
	}
	switch err := d.table.Discard(p.Index, tuple, now); {
	case errors.Is(err, contable.ErrFull):
		return refusedFull
	case errors.Is(err, contable.ErrShare):
		return refusedShare
	}
	return ""
}

func (d *Daemon) discardable(p *port, tuple conntrack.Tuple, now time.Time) bool {
	if !p.droppable.allow(now, droppablePerSecond, droppableAtOnce) {
		return false
	}
	r := &d.dropRules
	if r.read != d.policy.read {
		r.read = d.policy.read
		d.beatUntil(func() {
			r.rules, r.err = rules.Read(rules.Options{ExactCounters: d.opts.Config.ExactCounters, Drops: true})
		})
		if r.err != nil {
			d.log.Info("dropped packets stay regular", "error", r.err)
		}
	}
	if r.err != nil {
		return false
	}
	_, drops := r.rules.Discardable(rules.Flow{
		Tuple:     tuple,
		Port:      rules.Device{Name: p.Name, Index: p.Index},
		Inside:    d.policy.insideOf(p),
		Forwarded: d.isForwarded(tuple, p),
	})
	return drops
}

// isForwarded tells whether a packet of the container behind a port is for another
// host than this one.
func (d *Daemon) isForwarded(tuple conntrack.Tuple, p *port) bool {
	_, inside := p.Inside()
	routes, err := netlink.RouteGetWithOptions(tuple.Dst.Addr().AsSlice(), &netlink.RouteGetOptions{
		Iif: inside, SrcAddr: tuple.Src.Addr().AsSlice(),
	})
	return err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_UNICAST
}

// retireDiscards ends those of one port, or all if it is nil.
func (d *Daemon) retireDiscards(p *port, now time.Time) (n int) {
	d.table.Discards(func(e *contable.Discard, _ contable.Discarded) {
		if p == nil || e.Port == p.Index {
			d.table.RetireDiscard(e, now)
			n++
		}
	})
	return n
}

// discardFlow is a discard as `scon flows` lists it.
func (d *Daemon) discardFlow(e *contable.Discard, dropped contable.Discarded, p *port) api.Flow {
	flow := api.Flow{
		Container:        p.container.Name,
		Family:           familyOf(e.Tuple),
		Proto:            protoName(conntrack.Conn{Orig: e.Tuple}),
		Orig:             tupleOf(e.Tuple),
		Reply:            tupleOf(e.Tuple.Reverse()),
		State:            api.FlowComposing,
		Confilter:        api.ConfilterRegular,
		DiscardedPackets: dropped.Packets,
		AgeMS:            time.Since(e.Composed).Milliseconds(),
	}
	if d.table.Dropping(e) {
		flow.State, flow.Confilter = api.FlowDiscard, api.ConfilterDiscard
	}
	return flow
}
