package latency

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/netns"
)

// ErrUnsupported is wrapped if the kernel does not support the taps.
var ErrUnsupported = errors.New("this kernel does not support latency measurement: it lacks tcx (Linux 6.6)")

// Supported returns an error that wraps ErrUnsupported if latencies cannot be
// measured.
func Supported() error {
	t, err := openTaps(1)
	if err != nil {
		return err
	}
	return t.Close()
}

// place is the sending or receiving side of a device in a namespace.
type place struct {
	netns, dev string
	ingress    bool
}

// taps are the loaded BPF programs, with the memory that they share with this
// process.
type taps struct {
	objects tapsObjects
	memory  *ebpf.Memory
	links   []link.Link // the attached taps
	traces  []link.Link // the attached tracepoints
	// missing lists the causes of delay that this kernel does not report.
	missing []string
}

// openTaps loads the taps for runs of at most the given number of packets and
// attaches the tracepoints. The error wraps ErrUnsupported if the kernel lacks a
// feature.
func openTaps(packets uint32) (t *taps, err error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("lift the memlock limit: %w", err)
	}
	spec, err := loadTaps()
	if err != nil {
		return nil, fmt.Errorf("read the taps: %w", err)
	}
	spec.Maps["samples"].MaxEntries = packets
	t = &taps{}
	if err := spec.Variables[tapsVarMark].Set(uint64(mark)); err != nil {
		return nil, fmt.Errorf("set the mark: %w", err)
	}
	if err := spec.LoadAndAssign(&t.objects, nil); err != nil {
		err = fmt.Errorf("load the taps: %w", err)
		if errors.Is(err, ebpf.ErrNotSupported) {
			return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
		}
		return nil, err
	}
	// Attach in a scratch namespace first, before anything is built.
	err = netns.Scratch(func() error { return errors.Join(t.attachAt(place{dev: "lo"}, t.objects.SconTapIn), t.detach()) })
	if err != nil {
		return nil, errors.Join(err, t.objects.Close())
	}
	if t.memory, err = t.objects.Samples.Memory(); err != nil {
		return nil, errors.Join(fmt.Errorf("map the samples into memory: %w", err), t.objects.Close())
	}
	t.trace()
	return t, nil
}

// trace attaches the tracepoints that this kernel has.
func (t *taps) trace() {
	for _, p := range []struct {
		cause   Cause
		name    string
		program *ebpf.Program
	}{
		{Tick, "local_timer_entry", t.objects.SconTick},
		{Reschedule, "reschedule_entry", t.objects.SconReschedule},
		{Call, "call_function_entry", t.objects.SconCall},
		{Call, "call_function_single_entry", t.objects.SconCall},
		{Device, "irq_handler_entry", t.objects.SconDevice},
		{Squeeze, "softirq_raise", t.objects.SconRaise},
	} {
		l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: p.name, Program: p.program})
		if err != nil {
			t.missing = append(t.missing, p.cause.String())
			continue
		}
		t.traces = append(t.traces, l)
	}
}

// attach attaches the taps at the ends of a line. After an error nothing is
// attached.
func (t *taps) attach(in, out place) error {
	for _, p := range []struct {
		place
		program *ebpf.Program
	}{{in, t.objects.SconTapIn}, {out, t.objects.SconTapOut}} {
		if err := t.attachAt(p.place, p.program); err != nil {
			return errors.Join(err, t.detach())
		}
	}
	return nil
}

// attachAt attaches a tap.
func (t *taps) attachAt(at place, program *ebpf.Program) error {
	err := netns.Do(at.netns, func() error {
		dev, err := netlink.LinkByName(at.dev)
		if err != nil {
			return err
		}
		side := ebpf.AttachTCXEgress
		if at.ingress {
			side = ebpf.AttachTCXIngress
		}
		l, err := link.AttachTCX(link.TCXOptions{Interface: dev.Attrs().Index, Program: program, Attach: side})
		if err != nil {
			return err
		}
		t.links = append(t.links, l)
		return nil
	})
	if errors.Is(err, ebpf.ErrNotSupported) {
		err = fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if err != nil {
		return fmt.Errorf("tap %s: %w", at.dev, err)
	}
	return nil
}

// detach detaches the taps; the programs stay loaded.
func (t *taps) detach() error {
	var errs []error
	for _, l := range t.links {
		errs = append(errs, l.Close())
	}
	t.links = nil
	return errors.Join(errs...)
}

// Close detaches and unloads everything.
func (t *taps) Close() error {
	err := t.detach()
	for _, l := range t.traces {
		err = errors.Join(err, l.Close())
	}
	return errors.Join(err, t.objects.Close())
}

// begin clears the samples and has the taps record the packets of a run.
func (t *taps) begin(run, packets uint32) error {
	if most := t.objects.Samples.MaxEntries(); packets > most {
		return fmt.Errorf("a run of %d packets: want at most %d", packets, most)
	}
	if _, err := t.memory.WriteAt(asBytes(make([]sample, packets)), 0); err != nil {
		return fmt.Errorf("clear the samples: %w", err)
	}
	return t.objects.Run.Set(run)
}

// read returns the samples of a run.
func (t *taps) read(packets uint32) ([]sample, error) {
	samples := make([]sample, packets)
	if _, err := t.memory.ReadAt(asBytes(samples), 0); err != nil {
		return nil, fmt.Errorf("read the samples: %w", err)
	}
	return samples, nil
}

// asBytes returns the memory of samples, which have the layout of the BPF programs.
func asBytes(samples []sample) []byte {
	if len(samples) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&samples[0])), len(samples)*int(unsafe.Sizeof(sample{})))
}
