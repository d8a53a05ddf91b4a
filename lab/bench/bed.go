package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/scon-project/scon/lab/bench/peer"
	"github.com/scon-project/scon/test/bed/lab"
)

// peerArgs are the arguments with which this executable calls peer.Main.
var peerArgs = []string{"bench", "peer"}

// bed is a lab with a traffic peer in each node. In mode Express it also runs
// SCON's daemon.
type bed struct {
	lab        *lab.Lab
	uplink     string                // device of the measured routes
	wire       string                // device that all packets of the uplink cross, also those of a flowtable
	offload    string                // device of the flowtable beside the ports
	settings   string                // the daemon's settings
	daemonNode string                // the daemon's node
	ports      []string              // ports of the measured containers
	nodes      []string              // nodes with a peer
	peers      map[string]*peer.Peer // by node
	daemon     *daemon               // nil in other modes
	flowtable  bool                  // whether the flowtable is loaded
	liberal    bool                  // whether conntrack is
	serverNode string                // node of the servers
	server     netip.Addr            // address that the servers listen on
	reach      netip.Addr            // address that clients connect to, if it differs from server
	byBridge   bool                  // the path is one of Paths: the counters of bridge and uplink do not tell it
	firstCPU   int
	secondCPU  int
}

// openBed builds a lab for one experiment and starts the peers.
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

// openLab builds a lab for one experiment, without peers.
func openLab(e Experiment) (b *bed, err error) {
	b = &bed{
		uplink: lab.Uplink, wire: lab.Uplink, offload: lab.Uplink, daemonNode: lab.Device,
		ports: []string{lab.Port(1)}, nodes: []string{lab.Edge, Native.node, Container.node},
		peers: map[string]*peer.Peer{}, serverNode: lab.Edge, server: lab.EdgeAddr,
	}
	opts := labOptions(1)
	switch {
	case e.Path != nil:
		b.byBridge, opts.Containers = true, e.Path.containers()
	case e.Uplink != "":
		b.server, opts.Uplink, b.uplink = lab.SecondEdge, e.Uplink, lab.Second
		b.wire, b.offload = wireOf(e.Uplink)
		// The lab's wire below a bridge resembles a container's port.
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
	if !b.byBridge {
		return b, nil
	}
	if err := e.Path.setUp(b); err != nil {
		return nil, errors.Join(err, b.lab.Close())
	}
	return b, nil
}

// labOptions returns the options of the bed's lab.
func labOptions(containers int) lab.Options {
	return lab.Options{
		Prefix:     fmt.Sprintf("sconbench%d-", os.Getpid()),
		Containers: containers,
		Rules:      lab.RulesDocker,
	}
}

// Close ends all processes in the lab and removes it.
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

// Limits of the daemon's setting "connections": its default, and the largest.
const (
	leastConnections = 8192
	mostConnections  = 1 << 20
)

// roomFor has the daemon's table hold that many connections of one container.
func (b *bed) roomFor(connections int) {
	b.settings += fmt.Sprintf("connections: %d\nper_container_share: 100\n", min(max(leastConnections, connections), mostConnections))
}

func (b *bed) distance() (Distance, error) {
	return measureDistance(b.firstCPU, b.secondCPU)
}

// ready prepares the bed for a mode: conntrack is empty, SCON is attached only in
// Express, a flowtable is loaded only in Flowtable, and conntrack is liberal only in
// ExpressShort.
func (b *bed) ready(ctx context.Context, mode Mode) error {
	if err := b.lab.Do(lab.Device, ForgetConnections); err != nil {
		return err
	}
	if err := b.lab.Do(lab.Device, nothingAttached); err != nil {
		return err
	}
	if mode.flowtable {
		b.flowtable = true
		return b.lab.Do(lab.Device, func() error { return loadFlowtable(b.server, append([]string{b.offload}, b.ports...)) })
	}
	if !mode.express {
		return nil
	}
	if mode.short {
		b.liberal = true
		if err := b.lab.Do(lab.Device, func() error { return SetLiberal(true) }); err != nil {
			return err
		}
	}
	port := b.ports[0]
	if mode.netkit {
		port = lab.Port(2)
	}
	d, err := startDaemonAt(ctx, b.lab.Node(b.daemonNode), port, b.uplink, b.settings)
	if err != nil {
		return err
	}
	b.daemon = d
	mode.Settle()
	return nil
}

func (b *bed) clear() error {
	if b.flowtable {
		b.flowtable = false
		return b.lab.Do(lab.Device, func() error { return unloadFlowtable(b.server) })
	}
	var err error
	if b.daemon != nil {
		err = b.daemon.stop()
		b.daemon = nil
	}
	if b.liberal {
		b.liberal = false
		err = errors.Join(err, b.lab.Do(lab.Device, func() error { return SetLiberal(false) }))
	}
	return err
}

func (b *bed) meters() meters {
	return meters{lab: b.lab, wire: b.wire, daemon: b.daemon, byBridge: b.byBridge}
}

// take runs a step's traffic and checks which path the packets took.
func (b *bed) take(ctx context.Context, mode Mode, step Step) (s Sample, err error) {
	defer func() {
		if err != nil && ctx.Err() == nil { // the peers may be stuck in the run
			err = errors.Join(err, b.stopPeers(), b.startPeers())
		}
	}()
	spec := step.Spec
	spec.Address, spec.Reach = netip.AddrPortFrom(b.server, 0), b.reach
	spec.ServerCPU, spec.DriverCPU = b.secondCPU, b.firstCPU
	if step.OneCPU {
		spec.DriverCPU = b.secondCPU
	}

	meters := b.meters()
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
	served, driven, err := peer.Run(ctx, b.peers[b.serverNode], b.peers[mode.node], spec)
	if err != nil {
		return Sample{}, err
	}
	mode.Settle()
	after, err := meters.read()
	if err != nil {
		return Sample{}, err
	}

	return after.since(before).sample(mode, step, Measurement{Served: served, Driven: driven})
}
