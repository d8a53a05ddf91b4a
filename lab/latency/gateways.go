package latency

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"

	"github.com/scon-project/scon/internal/host/sysctl"
	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/topology"
	"github.com/scon-project/scon/test/bed/lab"
)

// containersNet covers all addresses of a line: a gateway translates every address
// from its bridge.
var containersNet = netip.MustParsePrefix("10.98.0.0/15")

// openGateways builds lines of gateways, each with two modes: without SCON, and
// with a daemon in every gateway.
func (m *measurement) openGateways(ctx context.Context) error {
	for _, n := range m.Nodes {
		t, err := topology.Line(lineName(experiment, n), n)
		if err != nil {
			return err
		}
		l, err := m.up(ctx, t)
		if err != nil {
			return err
		}
		for i := 1; i <= n; i++ {
			if err := l.Do(topology.Forwarder(i), makeGateway); err != nil {
				return fmt.Errorf("make %s a gateway: %w", topology.Forwarder(i), err)
			}
		}
		// SCON checks its devices for other programs: the last tap is therefore
		// beyond SCON's last device.
		ln, err := newLine(place{netns: l.Path(topology.In), dev: topology.Right},
			place{netns: l.Path(topology.Out), dev: topology.Left, ingress: true},
			l.Path(topology.Out), netip.AddrPortFrom(l.Addr(topology.Out), port))
		if err != nil {
			return err
		}
		m.undo = append(m.undo, ln.close)
		plain := &mode{name: modeName(n), nodes: n, rate: m.Rate, line: ln}
		express := &mode{name: modeName(n) + expressSuffix, nodes: n, rate: m.Rate, line: ln}
		d := &daemons{lab: l, gateways: n}
		express.enter, express.leave, express.share = d.start, d.stop, d.share
		m.modes = append(m.modes, plain, express)
	}
	return nil
}

// makeGateway makes the calling thread's namespace a Docker host: packets from
// the left cross a bridge, and Docker's rules filter and translate them.
func makeGateway() error {
	left, err := netlink.LinkByName(topology.Left)
	if err != nil {
		return err
	}
	addrs, err := netlink.AddrList(left, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	routes, err := netlink.RouteList(left, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = lab.Bridge
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("add a bridge: %w", err)
	}
	for _, a := range addrs {
		if err := netlink.AddrDel(left, &a); err != nil {
			return fmt.Errorf("remove an address: %w", err)
		}
		a.Label = ""
		if err := netlink.AddrAdd(bridge, &a); err != nil {
			return fmt.Errorf("give the bridge an address: %w", err)
		}
	}
	if err := errors.Join(netlink.LinkSetMaster(left, bridge), netlink.LinkSetUp(bridge)); err != nil {
		return fmt.Errorf("make a port of the bridge: %w", err)
	}
	for _, r := range routes {
		if r.Gw == nil {
			continue // the kernel adds this route with the address
		}
		r.LinkIndex = bridge.Attrs().Index
		if err := netlink.RouteReplace(&r); err != nil {
			return fmt.Errorf("route to %v: %w", r.Dst, err)
		}
	}
	if err := sysctl.Set([]sysctl.Setting{{Name: "net/bridge/bridge-nf-call-iptables", Value: "1"}}); err != nil {
		return err
	}
	return lab.LoadDockerRules(containersNet)
}

// daemons are SCON's daemons in the gateways of a line.
type daemons struct {
	lab      *topology.Lab
	gateways int
	running  []*bench.Daemon
}

// atOnce is the number of daemons that are started at the same time.
const atOnce = 4

// start starts the daemons and waits until the express path is active in all of
// them.
func (d *daemons) start(ctx context.Context) error {
	d.running = make([]*bench.Daemon, d.gateways)
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i := range d.gateways {
		group.Go(func() (err error) {
			d.running[i], err = bench.StartDaemon(ctx, d.lab.Path(topology.Forwarder(i+1)), topology.Left, topology.Right)
			return err
		})
	}
	return group.Wait()
}

// stop stops the daemons that were started.
func (d *daemons) stop(context.Context) error {
	var errs []error
	for _, daemon := range d.running {
		if daemon != nil {
			errs = append(errs, daemon.Close())
		}
	}
	d.running = nil
	return errors.Join(errs...)
}

// share returns the express share of the packets in all gateways.
func (d *daemons) share() (float64, error) {
	var express, all uint64
	for _, daemon := range d.running {
		e, r, err := daemon.Packets()
		if err != nil {
			return 0, err
		}
		express += e
		all += e + r
	}
	if all == 0 {
		return 0, nil
	}
	return float64(express) / float64(all), nil
}
