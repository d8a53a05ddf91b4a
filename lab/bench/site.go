package bench

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"syscall"
	"time"

	"github.com/scon-project/scon/internal/host/cores"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/lab"
)

// Traffic runs real programs in the lab's nodes for a step. It returns the values
// of the step's metrics and ends every process that it started.
type Traffic func(ctx context.Context, s *Site) (map[string]float64, error)

// Site is the environment of Traffic.
type Site struct {
	Mode Mode
	// FirstCPU runs the ends on the device, SecondCPU those at the edge.
	// Measurements on one CPU run both ends on SecondCPU.
	FirstCPU, SecondCPU int

	lab    *lab.Lab
	daemon *daemon // nil except in Express
}

// Node returns the node of the mode's n-th process, counted from 1.
func (s *Site) Node(n int) string {
	if s.Mode.node == lab.Device {
		return lab.Device
	}
	return lab.Container(n)
}

// Server returns the address that a server in Node(1) listens on, and the address
// that clients at the edge connect to: a published port if the server is in a
// container.
func (s *Site) Server() (listen, reach netip.AddrPort) {
	published := lab.Publications(1)[0]
	if s.Mode.node == lab.Device {
		native := netip.AddrPortFrom(lab.DeviceAddr, published.Container)
		return native, native
	}
	return netip.AddrPortFrom(s.lab.Addr(s.Node(1)), published.Container),
		netip.AddrPortFrom(lab.DeviceAddr, published.Device)
}

// Do calls fn in a node; see lab.Lab.Do.
func (s *Site) Do(node string, fn func() error) error { return s.lab.Do(node, fn) }

// Start starts cmd in a node on one CPU. Ctrl-C does not reach it, and the kernel
// kills it when this process ends.
func (s *Site) Start(node string, cpu int, cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return s.lab.Do(node, func() error {
		unpin, err := cores.Pin(cpu)
		if err != nil {
			return err
		}
		defer unpin()
		return cmd.Start()
	})
}

// DaemonTime returns the processor time that SCON's daemon has used, 0 without one.
func (s *Site) DaemonTime() (time.Duration, error) {
	if s.daemon == nil {
		return 0, nil
	}
	return processTime(s.daemon.command.Process.Pid)
}

// RunTraffic runs an experiment whose steps have Traffic or a Spec.
func RunTraffic(ctx context.Context, e Experiment, o Options) (*Result, error) {
	return runIn(ctx, e, o, func() (closableBed, error) {
		b, err := openBed(e)
		if err != nil {
			return nil, err
		}
		for n := 2; n <= e.Containers; n++ {
			b.ports = append(b.ports, lab.Port(n))
		}
		if _, err := lab.Up(labOptions(len(b.ports))); err != nil {
			return nil, errors.Join(err, b.Close())
		}
		return siteBed{b}, nil
	})
}

// siteBed is a bed for real programs, with as many containers as the experiment
// needs.
type siteBed struct{ *bed }

func (b siteBed) ready(ctx context.Context, mode Mode) error {
	if err := b.bed.ready(ctx, mode); err != nil || b.daemon == nil {
		return err
	}
	b.daemon.ports = b.ports
	return b.daemon.waitActive(ctx)
}

func (b siteBed) take(ctx context.Context, mode Mode, step Step) (Sample, error) {
	if step.Traffic == nil {
		return b.bed.take(ctx, mode, step)
	}
	meters := meters{lab: b.lab, wire: b.wire, daemon: b.daemon}
	before, err := meters.read()
	if err != nil {
		return Sample{}, err
	}
	values, err := step.Traffic(ctx, &Site{Mode: mode, FirstCPU: b.firstCPU, SecondCPU: b.secondCPU,
		lab: b.lab, daemon: b.daemon})
	if err != nil {
		return Sample{}, err
	}
	after, err := meters.read()
	if err != nil {
		return Sample{}, err
	}
	step.Values = func(Measurement) map[string]float64 { return values }
	return after.since(before).sample(mode, step, Measurement{})
}

// HasFlowtable reports whether this kernel supports nftables' flowtables.
func HasFlowtable() bool {
	return netns.Scratch(func() error {
		return nft("table ip t { flowtable f { hook ingress priority 0; devices = { lo }; }\n" +
			"chain c { type filter hook forward priority 0; meta l4proto tcp flow add @f; }; }\n")
	}) == nil
}
