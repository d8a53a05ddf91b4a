package profile

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
)

// ErrUnsupported is wrapped if the kernel does not support waypoints. The text
// names commands that still work.
var ErrUnsupported = errors.New("this kernel cannot be profiled")

const (
	unsupportedAdvice = "'scon bench quick' measures whole paths here, and 'perf record -a -e cpu-clock' divides them by function"
	noNetfilterLinks  = "it has no BPF netfilter links (Linux 6.4, CONFIG_NETFILTER_BPF_LINK)"
	noBTF             = "it has no BTF (CONFIG_DEBUG_INFO_BTF)"
)

// role is the additional task of a hook's waypoint.
type role int

const (
	passing role = iota
	beginning
	ending
)

// station is a waypoint at a hook.
type station struct {
	netns    string // name or path
	hook     hook
	priority int32
	role     role
}

// waypoints holds the loaded BPF programs.
type waypoints struct {
	objects waypointObjects
	reader  *ringbuf.Reader
	links   []link.Link
}

// loading holds the settings of the BPF programs.
type loading struct {
	quota   uint32   // followed packets per 10 ms on one CPU
	wireNet uint32   // namespace of the wires, by its inode
	wires   []uint32 // devices where paths begin and end, by index, at most 4
}

// load loads the programs. The error wraps ErrUnsupported if the kernel lacks a
// feature.
func load(o loading) (w *waypoints, err error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("lift the memlock limit: %w", err)
	}
	spec, err := loadWaypoint()
	if err != nil {
		return nil, err
	}
	var wires [4]uint32
	copy(wires[:], o.wires)
	for name, value := range map[string]any{waypointVarQuota: o.quota, waypointVarWireNet: o.wireNet, waypointVarWires: wires} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
	}
	w = &waypoints{}
	if err := spec.LoadAndAssign(&w.objects, nil); err != nil {
		return nil, explain(fmt.Errorf("load the waypoints: %w", err), features.HaveProgramType(ebpf.Netfilter))
	}
	if w.reader, err = ringbuf.NewReader(w.objects.Paths); err != nil {
		return nil, errors.Join(err, w.objects.Close())
	}
	return w, nil
}

// explain adds the missing kernel feature to an error of loading, if there is one.
// netfilter is the error of probing for Netfilter programs.
func explain(err, netfilter error) error {
	switch {
	case errors.Is(netfilter, ebpf.ErrNotSupported):
		return fmt.Errorf("%w: %s; %s", ErrUnsupported, noNetfilterLinks, unsupportedAdvice)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("%w: %s; %s", ErrUnsupported, noBTF, unsupportedAdvice)
	}
	return err
}

// Close detaches and unloads everything.
func (w *waypoints) Close() error {
	return errors.Join(w.detach(), w.reader.Close(), w.objects.Close())
}

// attach attaches the tracepoints and stations, then follows packets. After an error
// nothing is attached.
func (w *waypoints) attach(stations []station) error {
	if err := w.attachTracepoints(); err != nil {
		return errors.Join(err, w.detach())
	}
	return w.attachStations(stations)
}

// attachStations attaches stations, then follows packets. After an error nothing is
// attached.
func (w *waypoints) attachStations(stations []station) error {
	for _, s := range stations {
		if err := w.attachStation(s); err != nil {
			err = fmt.Errorf("attach a waypoint to %s at priority %d: %w", hookNames[s.hook], s.priority, err)
			return errors.Join(err, w.detach())
		}
	}
	if err := w.objects.Watching.Set(uint32(1)); err != nil {
		return errors.Join(fmt.Errorf("follow packets: %w", err), w.detach())
	}
	return nil
}

func (w *waypoints) attachTracepoints() error {
	o := &w.objects
	for _, p := range []*ebpf.Program{o.SconQueue, o.SconStart, o.SconRx, o.SconXmit, o.SconReceive} {
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err != nil {
			return fmt.Errorf("attach %v: %w", p, err)
		}
		w.links = append(w.links, l)
	}
	return nil
}

func (w *waypoints) attachStation(s station) error {
	program := map[role]*ebpf.Program{
		passing: w.objects.SconAtHook, beginning: w.objects.SconPathBegins, ending: w.objects.SconPathEnds,
	}[s.role]
	return netns.Do(s.netns, func() error {
		l, err := attachNetfilter(link.NetfilterOptions{
			Program: program, ProtocolFamily: link.NetfilterProtoIPv4, Hook: s.hook, Priority: s.priority,
		})
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("another program has this priority; is another profile running?: %w", err)
		}
		if err != nil {
			return err
		}
		w.links = append(w.links, l)
		return nil
	})
}

// afterlife is the time for which a detached waypoint may still exist, since a
// process that lists the kernel's links holds it.
const afterlife = 200 * time.Millisecond

// attachNetfilter waits for a used priority to become free, in case a detached
// waypoint still holds it.
func attachNetfilter(o link.NetfilterOptions) (l link.Link, err error) {
	for deadline := time.Now().Add(afterlife); ; time.Sleep(time.Millisecond) {
		l, err = link.AttachNetfilter(o)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return l, err
		}
	}
}

// patience is the time after which the programs give up a packet.
const patience = time.Millisecond

// detach lets the followed packets come to their ends, then detaches all waypoints; the
// programs stay loaded.
func (w *waypoints) detach() error {
	if len(w.links) == 0 {
		return nil
	}
	errs := []error{w.objects.Watching.Set(uint32(0))}
	time.Sleep(patience)
	for _, l := range w.links {
		errs = append(errs, l.Close())
	}
	w.links = nil
	return errors.Join(errs...)
}

// step is a waypoint that a packet has passed.
type step = waypointStep

// pathHead is the size of the header before the steps of a path in the ring.
const pathHead = int(unsafe.Offsetof(waypointLane{}.Path.Steps))

// collect returns the paths that ended since the last call.
func (w *waypoints) collect() (paths [][]step, err error) {
	if err := w.reader.Flush(); err != nil {
		return nil, err
	}
	for {
		record, err := w.reader.Read()
		if errors.Is(err, ringbuf.ErrFlushed) {
			return paths, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the paths: %w", err)
		}
		paths = append(paths, parseSteps(record.RawSample))
	}
}

// parseSteps parses the steps of a path.
func parseSteps(raw []byte) []step {
	if len(raw) < pathHead {
		return nil
	}
	n := (len(raw) - pathHead) / int(unsafe.Sizeof(step{}))
	steps := make([]step, n)
	if n > 0 {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&steps[0])), n*int(unsafe.Sizeof(step{}))), raw[pathHead:])
	}
	return steps
}

// count returns the waypoints' counters.
func (w *waypoints) count() (c Cost, err error) {
	var lanes []waypointLane
	if err := w.objects.Lanes.Lookup(uint32(0), &lanes); err != nil {
		return Cost{}, fmt.Errorf("read the waypoints' counters: %w", err)
	}
	for _, l := range lanes {
		c.Runs += l.Runs
		c.Begun += l.Begun
		c.Ended += l.Ended
		c.Lost += l.Lost
	}
	return c, nil
}
