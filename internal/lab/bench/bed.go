package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/scon-project/scon/internal/lab"
	"github.com/scon-project/scon/internal/lab/bench/peer"
)

// peerArgs make this executable call peer.Main.
var peerArgs = []string{"bench", "peer"}

// bed is the lab with a traffic peer in each node, and SCON's daemon while the
// mode is Express.
type bed struct {
	lab       *lab.Lab
	uplink    string                // device that routes lead out of
	wire      string                // device that all its packets cross, a flowtable's too
	settings  string                // of the daemon
	ports     []string              // of the containers that are measured
	nodes     []string              // with peers
	peers     map[string]*peer.Peer // by node
	daemon    *daemon               // nil in other modes
	flowtable bool                  // is loaded
	far       string                // node of servers
	server    netip.Addr            // where they listen
	reach     netip.Addr            // where they are called, if that is another address
	between   bool                  // both ends are containers
	firstCPU  int
	secondCPU int
}

// openBed builds a lab of its own for an experiment and starts the peers.
func openBed(e Experiment) (*bed, error) {
	b, err := openLab(e)
	if err != nil {
		return nil, err
	}
	if err := b.startPeers(); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// openLab builds a lab of its own, without peers.
func openLab(e Experiment) (b *bed, err error) {
	b = &bed{
		uplink: lab.Uplink, wire: lab.Uplink,
		ports: []string{lab.Port(1)}, nodes: []string{lab.Edge, Native.node, Container.node},
		peers: map[string]*peer.Peer{}, far: lab.Edge, server: lab.EdgeAddr,
	}
	opts := labOptions(1)
	switch {
	case e.Way != nil:
		b.between, opts.Containers = true, 2
	case e.Uplink != "":
		b.server, opts.Uplink, b.uplink, b.wire = lab.SecondEdge, e.Uplink, lab.Second, wireOf(e.Uplink)
		// A wire of the lab below a bridge is like a container's.
		b.settings = fmt.Sprintf("bridges: [%s]\nuplinks: [%s, %s]\n", lab.Bridge, lab.Uplink, lab.Second)
	case e.Overlay:
		b.server, opts.Overlay = lab.FlannelEdge, lab.OverlayFlannel
	case e.IPv6:
		b.server, opts.IPv6 = lab.EdgeAddr6, true
	}
	if b.firstCPU, b.secondCPU, err = TwoCPUs(); err != nil {
		return nil, err
	}
	if e.hasNetkit() {
		opts.Containers, opts.Netkit = 2, 1
		b.nodes = append(b.nodes, Netkit.node)
	}
	if b.lab, err = lab.Up(opts); err != nil {
		return nil, err
	}
	if !b.between {
		return b, nil
	}
	if err := e.Way.take(b); err != nil {
		return nil, errors.Join(err, b.lab.Close())
	}
	return b, nil
}

// labOptions of the bed's lab, with one container or more.
func labOptions(containers int) lab.Options {
	return lab.Options{
		Prefix:     fmt.Sprintf("sconbench%d-", os.Getpid()),
		Containers: containers,
		Rules:      lab.RulesDocker,
	}
}

// Close ends everything that runs in the lab and removes it.
func (b *bed) Close() error {
	return errors.Join(b.clear(), b.stopPeers(), b.lab.Close())
}

func (b *bed) startPeers() error {
	for _, node := range b.nodes {
		p, err := peer.Start(peer.Options{Node: node, Netns: b.lab.Node(node), Args: peerArgs})
		if err != nil {
			return err
		}
		b.peers[node] = p
	}
	return nil
}

func (b *bed) stopPeers() error {
	var errs []error
	for node, p := range b.peers {
		errs = append(errs, p.Close())
		delete(b.peers, node)
	}
	return errors.Join(errs...)
}

func (b *bed) distance() (Distance, error) {
	return measureDistance(b.firstCPU, b.secondCPU)
}

// ready begins each mode without connections from before, without anything of
// SCON's except in Express, and without a flowtable except in Flowtable.
func (b *bed) ready(ctx context.Context, mode Mode) error {
	if err := b.lab.Do(lab.Device, forgetConnections); err != nil {
		return err
	}
	if err := b.lab.Do(lab.Device, nothingAttached); err != nil {
		return err
	}
	if mode.flowtable {
		b.flowtable = true
		return b.lab.Do(lab.Device, func() error { return loadFlowtable(b.server, append([]string{b.wire}, b.ports...)) })
	}
	if !mode.express {
		return nil
	}
	port := b.ports[0]
	if mode.netkit {
		port = lab.Port(2)
	}
	d, err := startDaemonAt(ctx, b.lab.Node(lab.Device), port, b.uplink, b.settings)
	if err != nil {
		return err
	}
	b.daemon = d
	return nil
}

func (b *bed) clear() error {
	if b.flowtable {
		b.flowtable = false
		return b.lab.Do(lab.Device, func() error { return unloadFlowtable(b.server) })
	}
	if b.daemon == nil {
		return nil
	}
	err := b.daemon.stop()
	b.daemon = nil
	return err
}

// take runs a step's traffic and checks which way it went.
func (b *bed) take(ctx context.Context, mode Mode, step Step) (s Sample, err error) {
	defer func() {
		if err != nil && ctx.Err() == nil { // peers may be stuck in the run
			err = errors.Join(err, b.stopPeers(), b.startPeers())
		}
	}()
	spec := step.Spec
	spec.Address, spec.Reach = netip.AddrPortFrom(b.server, 0), b.reach
	spec.ServerCPU, spec.DriverCPU = b.secondCPU, b.firstCPU
	if step.OneCPU {
		spec.DriverCPU = b.secondCPU
	}

	meters := meters{lab: b.lab, wire: b.wire, daemon: b.daemon, between: b.between}
	if step.Softirq {
		if meters.softirq, err = openSoftirqMeter(); err != nil {
			return Sample{}, err
		}
		defer func() { err = errors.Join(err, meters.softirq.Close()) }()
	}
	before, err := meters.read()
	if err != nil {
		return Sample{}, err
	}
	served, driven, err := peer.Run(ctx, b.peers[b.far], b.peers[mode.node], spec)
	if err != nil {
		return Sample{}, err
	}
	after, err := meters.read()
	if err != nil {
		return Sample{}, err
	}

	return after.since(before).sample(mode, step, Measurement{Served: served, Driven: driven})
}
