package express

import (
	"cmp"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/hooks"
)

// eachFlow calls fn in the loop for each Conentry, those of one container if it
// is given. It never holds the loop for long: a heartbeat is due between two
// pieces of the table. Conentries that come or go meanwhile may be left out.
func (b backend) eachFlow(container string, fn func(view, api.Flow)) error {
	for from := uint32(0); ; {
		next, err := inLoop(b, func(d *Daemon) (uint32, error) { return d.view().flows(container, from, fn) })
		if err != nil || next == 0 {
			return err
		}
		from = next
	}
}

// flows calls fn for the flows of a piece of the table, and with the last one for
// all discards, which are few.
func (v view) flows(container string, from uint32, fn func(view, api.Flow)) (next uint32, err error) {
	var ports []*hooks.Port
	if container != "" {
		if ports, err = v.portsOf(container); err != nil {
			return 0, err
		}
	}
	wanted := func(index int) bool {
		p := v.hooks.Ports()[index]
		return p != nil && (container == "" || slices.Contains(ports, p))
	}
	next = v.table.Piece(from, pieceLength, func(e *contable.Conentry) {
		if wanted(e.Port()) || wanted(e.Peer()) {
			fn(v, v.flow(e))
		}
	})
	if next != 0 {
		return next, nil
	}
	v.table.Discards(func(e *contable.Discard, dropped contable.Discarded) {
		if p := v.hooks.Ports()[e.Port]; wanted(e.Port) {
			fn(v, v.discardFlow(e, dropped, p))
		}
	})
	return 0, nil
}

// sortFlows sorts flows, the busiest first.
func sortFlows(flows []api.Flow) {
	slices.SortFunc(flows, func(a, b api.Flow) int {
		busy := func(f api.Flow) uint64 { return f.ExpressPackets[0] + f.ExpressPackets[1] }
		return cmp.Or(cmp.Compare(busy(b), busy(a)), a.Orig.Compare(b.Orig))
	})
}

func (v view) flow(e *contable.Conentry) api.Flow {
	p, peer := v.hooks.Ports()[e.Port()], v.hooks.Ports()[e.Peer()]
	f := v.table.Flow(e, time.Now())
	flow := api.Flow{
		Container:      p.Container.Name,
		Untracked:      e.Untracked,
		Family:         familyOf(f.Conn.Orig),
		Proto:          "udp",
		Orig:           tupleOf(f.Conn.Orig),
		Reply:          tupleOf(f.Conn.Reply),
		Direction:      api.DirectionIn,
		State:          api.FlowComposing,
		Confilter:      api.ConfilterRegular,
		ExpressPackets: f.Packets,
		ExpressBytes:   f.Bytes,
		AgeMS:          f.Age.Milliseconds(),
		IdleMS:         f.Idle.Milliseconds(),
		LeaseMS:        f.Left.Milliseconds(),
		LeaseLimitMS:   e.Lease().Milliseconds(),
		LeasePackets:   v.table.LeasePackets(e),
		LeaseBound:     v.composer.LeaseOf(e),
	}
	if f.Conn.Orig.Proto == unix.IPPROTO_TCP {
		flow.Proto = "tcp"
	}
	if f.Opened {
		flow.Direction = api.DirectionOut
	}
	if v.state(time.Now()) != api.StateActive {
		flow.LeaseMS = 0
	}
	if f.Decided {
		flow.State, flow.Confilter = api.FlowExpress, api.ConfilterSuccess
	}
	flow.Path = api.PathWire
	if u, ok := v.hooks.Uplinks()[f.Oif]; ok {
		flow.Oif, flow.MTU = u.Name, u.MTU
		if !u.Bare() {
			flow.NextHop = f.NextHop.String()
		}
		flow.Overlay = v.hooks.Uplinks()[f.Overlay].Name
	}
	if peer == nil {
		if f.Bridged {
			flow.Path = api.PathBridged
		}
		return flow
	}
	flow.Peer, flow.Path = peer.Container.Name, pathBetween(p, peer, f)
	if f.Oif == peer.Index {
		flow.Oif, flow.NextHop, flow.MTU = peer.Name, f.NextHop.String(), peer.MTU
	}
	return flow
}

// discardFlow is a discard as `scon flows` lists it.
func (v view) discardFlow(e *contable.Discard, dropped contable.Discarded, p *hooks.Port) api.Flow {
	flow := api.Flow{
		Container:        p.Container.Name,
		Family:           familyOf(e.Tuple),
		Proto:            protoName(conntrack.Conn{Orig: e.Tuple}),
		Orig:             tupleOf(e.Tuple),
		Reply:            tupleOf(e.Tuple.Reverse()),
		Direction:        api.DirectionOut, // as far as is known: only what the container sends is dropped
		State:            api.FlowComposing,
		Confilter:        api.ConfilterRegular,
		DiscardedPackets: dropped.Packets,
		AgeMS:            time.Since(e.Composed).Milliseconds(),
	}
	if v.table.Dropping(e) {
		flow.State, flow.Confilter = api.FlowDiscard, api.ConfilterDiscard
	}
	return flow
}

// pathBetween returns which regular path packets between two containers take.
func pathBetween(p, peer *hooks.Port, f contable.Flow) string {
	switch {
	case !f.Decided:
		return api.PathContainers
	case p.Bridge.Index != peer.Bridge.Index || p.Routed():
		return api.PathRouted
	case !f.Bridged || f.Conn.Orig != f.Conn.Reply.Reverse(): // Netfilter may translate in the bridge
		return api.PathHairpin
	default:
		return api.PathBridged
	}
}

func familyOf(t conntrack.Tuple) string {
	if t.Src.Addr().Is4() {
		return "ipv4"
	}
	return "ipv6"
}

func tupleOf(t conntrack.Tuple) api.Tuple {
	return api.Tuple{
		Src: t.Src.Addr().String(), Sport: t.Src.Port(),
		Dst: t.Dst.Addr().String(), Dport: t.Dst.Port(),
	}
}
