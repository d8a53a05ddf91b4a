package express

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
)

// backend answers API clients. What needs the daemon's state is done in the
// loop; Explain is in explain.go.
type backend struct {
	d   *Daemon
	ctx context.Context
}

// inLoop runs fn in the loop of d.
func inLoop[T any](b backend, fn func(*Daemon) (T, error)) (result T, err error) {
	done := make(chan struct{})
	call := func() {
		defer close(done)
		result, err = fn(b.d)
	}
	select {
	case b.d.calls <- call:
		<-done
		return result, err
	case <-b.ctx.Done():
		return result, errors.New("the daemon is about to end")
	}
}

func (b backend) Status() (api.Status, error) {
	return inLoop(b, (*Daemon).status)
}

func (b backend) Flush(container string) (int, error) {
	return inLoop(b, func(d *Daemon) (int, error) {
		if container == "" {
			return d.flush(nil), nil
		}
		ports, err := d.portsOf(container)
		n := 0
		for _, p := range ports {
			n += d.flush(p)
		}
		return n, err
	})
}

func (b backend) Pause(container string) error { return b.setPaused(container, true) }

func (b backend) Resume(container string) error { return b.setPaused(container, false) }

func (b backend) setPaused(container string, paused bool) error {
	_, err := inLoop(b, func(d *Daemon) (struct{}, error) {
		if container == "" {
			return struct{}{}, d.pause(paused)
		}
		ports, err := d.portsOf(container)
		for _, p := range ports {
			p.paused = paused
			d.flush(p)
		}
		return struct{}{}, err
	})
	return err
}

func (b backend) Stop() error {
	b.d.stop()
	return nil
}

// pause makes all packets regular by keeping the heartbeat back, or resumes.
func (d *Daemon) pause(paused bool) error {
	d.paused = paused
	if paused {
		d.dp.Settings().Paused = 1
		d.makeInert()
		return nil
	}
	d.dp.Settings().Paused = 0
	return d.beat()
}

// portsOf returns the ports of a container by its name, ID or device.
func (d *Daemon) portsOf(container string) ([]*port, error) {
	var ports []*port
	known := make(map[string]bool)
	for _, p := range d.devices.ports {
		c := p.container
		if container == c.Name || container == c.ID || container == p.Name {
			ports = append(ports, p)
		}
		known[c.Name] = true
	}
	if len(ports) == 0 {
		return nil, &api.UnknownContainerError{Name: container, Known: slices.Sorted(maps.Keys(known))}
	}
	return ports, nil
}

func (d *Daemon) status() (api.Status, error) {
	byPort, sum := d.table.Totals()
	s := api.Status{
		State:      d.state(),
		Kernel:     kernel(),
		Mode:       d.dp.Mode(),
		Generation: d.dp.Settings().Generation,
		Hooks:      []api.Hook{},
		Containers: []api.Container{},
		Reasons:    make(map[string]uint64),
		Skipped:    d.devices.skipped,
		PID:        pid(),
		Version:    d.opts.Version,
		Layout:     datapath.LayoutVersion,
		Totals: api.Totals{
			Entries:        d.table.Len(),
			ExpressPackets: sum.Packets,
			ExpressBytes:   sum.Bytes,
			RegularPackets: d.devices.pastRegular,

			DiscardedPackets: d.table.Discarded().Packets,
		},
	}
	if f, unread := d.policy.unreadFinding(); unread {
		s.Why = f.What + ": " + f.Why
	}
	for index, u := range d.devices.uplinks {
		s.Hooks = append(s.Hooks, d.hooksOf(index, u.Name, datapath.UplinkHooks)...)
		counters, err := d.dp.Counters(index)
		if err != nil {
			return s, err
		}
		for reason, n := range counters.Reasons {
			s.Reasons[reason] += n
		}
	}
	for index, p := range d.devices.ports {
		express := byPort[index]
		s.Hooks = append(s.Hooks, d.hooksOf(index, p.Name, p.hooks())...)
		counters, err := d.dp.Counters(index)
		if err != nil {
			return s, err
		}
		s.Totals.RegularPackets += counters.Packets
		s.Containers = append(s.Containers, api.Container{
			Name:           p.container.Name,
			ID:             p.container.ID,
			Dev:            p.Name,
			Bridge:         p.Bridge.Name,
			Entries:        d.table.LenOf(index),
			Paused:         p.paused,
			ExpressPackets: express.Packets,
			RegularPackets: counters.Packets,
			Reasons:        counters.Reasons,
			ExpressSent:    api.Count{Packets: express.SentPackets, Bytes: express.SentBytes},
			ExpressReceived: api.Count{
				Packets: express.Packets - express.SentPackets, Bytes: express.Bytes - express.SentBytes,
			},
		})
	}
	slices.SortFunc(s.Hooks, func(a, b api.Hook) int {
		return cmp.Or(a.Ifindex-b.Ifindex, cmp.Compare(a.Hook, b.Hook))
	})
	slices.SortFunc(s.Containers, func(a, b api.Container) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Dev, b.Dev))
	})
	return s, nil
}

func (d *Daemon) state() string {
	switch {
	case d.paused:
		return api.StatePaused
	case d.policy.err != nil:
		return api.StateInert
	default:
		return api.StateActive
	}
}

func (d *Daemon) hooksOf(ifindex int, dev string, hooks []datapath.Hook) (all []api.Hook) {
	for _, h := range hooks {
		mode := d.dp.Mode()
		if h == datapath.FromNetkit {
			mode = discover.Netkit
		}
		all = append(all, api.Hook{Dev: dev, Ifindex: ifindex, Hook: h.String(), Mode: mode})
	}
	return all
}

// flows lists Conentries, those of one container if it is given, busiest first.
func (d *Daemon) flows(container string) ([]api.Flow, error) {
	var ports []*port
	if container != "" {
		var err error
		if ports, err = d.portsOf(container); err != nil {
			return nil, err
		}
	}
	flows := make([]api.Flow, 0, d.table.Len())
	wanted := func(index int) bool {
		p := d.devices.ports[index]
		return p != nil && (container == "" || slices.Contains(ports, p))
	}
	d.table.All(func(e *contable.Conentry) {
		if wanted(e.Port) || wanted(e.Peer) {
			flows = append(flows, d.flow(e))
		}
	})
	d.table.Discards(func(e *contable.Discard, dropped contable.Discarded) {
		if p := d.devices.ports[e.Port]; wanted(e.Port) {
			flows = append(flows, d.discardFlow(e, dropped, p))
		}
	})
	slices.SortFunc(flows, func(a, b api.Flow) int {
		busy := func(f api.Flow) uint64 { return f.ExpressPackets[0] + f.ExpressPackets[1] }
		return cmp.Or(cmp.Compare(busy(b), busy(a)), a.Orig.Compare(b.Orig))
	})
	return flows, nil
}

func (d *Daemon) flow(e *contable.Conentry) api.Flow {
	p, peer := d.devices.ports[e.Port], d.devices.ports[e.Peer]
	tick := d.dp.Tick()
	f := d.table.Flow(e, d.dp.Settings().Heartbeat, uint32(d.opts.Config.Lease/tick), time.Now())
	flow := api.Flow{
		Container:      p.container.Name,
		Untracked:      e.Untracked,
		Family:         familyOf(f.Conn.Orig),
		Proto:          "udp",
		Orig:           tupleOf(f.Conn.Orig),
		Reply:          tupleOf(f.Conn.Reply),
		State:          api.FlowComposing,
		Confilter:      api.ConfilterRegular,
		ExpressPackets: f.Packets,
		ExpressBytes:   f.Bytes,
		AgeMS:          f.Age.Milliseconds(),
		IdleMS:         f.Idle.Milliseconds(),
		LeaseMS:        (time.Duration(f.Lease) * tick).Milliseconds(),
	}
	if f.Conn.Orig.Proto == protoTCP {
		flow.Proto = "tcp"
	}
	if d.state() != api.StateActive {
		flow.LeaseMS = 0
	}
	if f.Decided {
		flow.State, flow.Confilter = api.FlowExpress, api.ConfilterSuccess
	}
	flow.Way = api.WayWire
	if u, ok := d.devices.uplinks[f.Oif]; ok {
		flow.Oif, flow.MTU = u.Name, u.MTU
		if !u.Bare() {
			flow.NextHop = f.NextHop.String()
		}
		flow.Overlay = d.devices.uplinks[f.Overlay].Name
	}
	if peer == nil {
		return flow
	}
	flow.Peer, flow.Way = peer.container.Name, wayBetween(p, peer, f)
	if f.Oif == peer.Index {
		flow.Oif, flow.NextHop, flow.MTU = peer.Name, f.NextHop.String(), peer.MTU
	}
	return flow
}

// wayBetween names the regular way of a connection of two containers.
func wayBetween(p, peer *port, f contable.Flow) string {
	switch {
	case !f.Decided:
		return api.WayContainers
	case p.Bridge.Index != peer.Bridge.Index || p.Routed():
		return api.WayRouted
	case !f.Bridged || f.Conn.Orig != f.Conn.Reply.Reverse(): // Netfilter may see to it in the bridge
		return api.WayHairpin
	default:
		return api.WayBridged
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

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
