package bench

import (
	"context"
	"net/netip"

	"github.com/scon-project/scon/internal/lab"
	"github.com/scon-project/scon/internal/lab/bench/peer"
)

// Stage is where the experiments take place, for measurements of another kind.
type Stage struct {
	bed *bed
}

// OpenStage builds a lab of its own with a traffic peer in each node.
func OpenStage() (*Stage, error) {
	b, err := openBed(Experiment{})
	if err != nil {
		return nil, err
	}
	return &Stage{b}, nil
}

// Close ends everything that runs in the lab and removes it.
func (s *Stage) Close() error { return s.bed.Close() }

// Lab is the stage's lab.
func (s *Stage) Lab() *lab.Lab { return s.bed.lab }

// Node names the node of the lab that sends in a mode.
func (m Mode) Node() string { return m.node }

// Enter makes the stage ready for a mode, as before each visit of a run.
func (s *Stage) Enter(ctx context.Context, mode Mode) error { return s.bed.ready(ctx, mode) }

// Leave undoes Enter.
func (s *Stage) Leave() error { return s.bed.clear() }

// Send runs traffic between the mode's node and the edge; the stage fills in
// the address and the CPUs.
func (s *Stage) Send(ctx context.Context, mode Mode, spec peer.Spec) (served, driven peer.Report, err error) {
	spec.Address = netip.AddrPortFrom(s.bed.server, 0)
	spec.ServerCPU, spec.DriverCPU = s.bed.secondCPU, s.bed.firstCPU
	return peer.Run(ctx, s.bed.peers[lab.Edge], s.bed.peers[mode.node], spec)
}

// Machine names the hardware, and the kernel's release.
func Machine() (hardware, kernel string) { return describeMachine(), kernelRelease() }

// MeasureDistance measures how far the first and the last CPU are apart that this
// process may use.
func MeasureDistance() (Distance, error) {
	first, last, err := TwoCPUs()
	if err != nil {
		return Distance{}, err
	}
	return measureDistance(first, last)
}

// Daemon is SCON's daemon at work.
type Daemon struct {
	daemon *daemon
}

// StartDaemon starts a daemon in a namespace with one container, and waits until
// packets between the container's port and the uplink can go express.
func StartDaemon(ctx context.Context, netns, port, uplink string) (*Daemon, error) {
	d, err := startDaemonAt(ctx, netns, port, uplink, "")
	if err != nil {
		return nil, err
	}
	return &Daemon{d}, nil
}

// Packets of the container so far, by the way that they went.
func (d *Daemon) Packets() (express, regular uint64, err error) {
	var r reading
	err = d.daemon.read(&r)
	return r.express, r.regular, err
}

// Close ends the daemon as a service manager does.
func (d *Daemon) Close() error { return d.daemon.stop() }
