package bench

import (
	"context"
	"net/netip"

	"github.com/scon-project/scon/lab/bench/peer"
	"github.com/scon-project/scon/test/bed/lab"
)

// Stage is the experiments' testbed for other kinds of measurement.
type Stage struct {
	bed *bed
}

// OpenStage builds a lab with a traffic peer in each node.
func OpenStage() (*Stage, error) {
	b, err := openBed(Experiment{})
	if err != nil {
		return nil, err
	}
	return &Stage{b}, nil
}

// Close ends all processes in the lab and removes it.
func (s *Stage) Close() error { return s.bed.Close() }

// Lab returns the stage's lab.
func (s *Stage) Lab() *lab.Lab { return s.bed.lab }

// Node returns the name of the lab node that sends in a mode.
func (m Mode) Node() string { return m.node }

// Enter prepares the stage for a mode.
func (s *Stage) Enter(ctx context.Context, mode Mode) error { return s.bed.ready(ctx, mode) }

// Leave undoes Enter.
func (s *Stage) Leave() error { return s.bed.clear() }

// Send runs traffic between the mode's node and the edge. The stage sets the
// address and the CPUs.
func (s *Stage) Send(ctx context.Context, mode Mode, spec peer.Spec) (served, driven peer.Report, err error) {
	spec.Address = netip.AddrPortFrom(s.bed.server, 0)
	spec.ServerCPU, spec.DriverCPU = s.bed.secondCPU, s.bed.firstCPU
	return peer.Run(ctx, s.bed.peers[lab.Edge], s.bed.peers[mode.node], spec)
}

// Machine returns the hardware and the kernel's release.
func Machine() (hardware, kernel string) { return describeMachine(), kernelRelease() }

// MeasureDistance measures the distance of the first and the last CPU that this
// process may use.
func MeasureDistance() (Distance, error) {
	first, last, err := TwoCPUs()
	if err != nil {
		return Distance{}, err
	}
	return measureDistance(first, last)
}

// Daemon is a running SCON daemon.
type Daemon struct {
	daemon *daemon
}

// StartDaemon starts a daemon in a namespace with one container and waits until the
// express path between the container's port and the uplink is active.
func StartDaemon(ctx context.Context, netns, port, uplink string) (*Daemon, error) {
	d, err := startDaemonAt(ctx, netns, port, uplink, "")
	if err != nil {
		return nil, err
	}
	return &Daemon{d}, nil
}

// Packets returns the container's packets so far, by path.
func (d *Daemon) Packets() (express, regular uint64, err error) {
	var r reading
	err = d.daemon.read(&r)
	return r.express, r.regular, err
}

// Close ends the daemon with SIGTERM, as a service manager does.
func (d *Daemon) Close() error { return d.daemon.stop() }
