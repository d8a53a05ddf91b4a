package latency

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unsafe"

	"golang.org/x/sys/unix"
)

// errNoCounter is wrapped if the CPUs or the hypervisor do not count an event.
var errNoCounter = errors.New("not available here")

// event is an event of perf_event_open(2).
type event struct {
	kind   uint32
	config uint64
}

// Events of the data TLBs, as in the paper's Fig. 4 (section IV-A): lookups of
// loads, and those that missed.
var (
	tlbLoads  = event{unix.PERF_TYPE_HW_CACHE, unix.PERF_COUNT_HW_CACHE_DTLB | unix.PERF_COUNT_HW_CACHE_RESULT_ACCESS<<16}
	tlbMisses = event{unix.PERF_TYPE_HW_CACHE, unix.PERF_COUNT_HW_CACHE_DTLB | unix.PERF_COUNT_HW_CACHE_RESULT_MISS<<16}
)

// dtlbMiss is the metric's name.
const dtlbMiss = "dtlb_miss"

// counter counts an event on some CPUs.
type counter struct {
	files []int
}

// openCounter starts counting. The error wraps errNoCounter if the event cannot be
// counted.
func openCounter(e event, cpus []int) (c *counter, err error) {
	attr := unix.PerfEventAttr{
		Type: e.kind, Config: e.config, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Read_format: unix.PERF_FORMAT_TOTAL_TIME_ENABLED | unix.PERF_FORMAT_TOTAL_TIME_RUNNING,
	}
	c = &counter{}
	for _, cpu := range cpus {
		fd, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%w: %s", errNoCounter, whyNoCounter(err)), c.close())
		}
		c.files = append(c.files, fd)
	}
	return c, nil
}

// whyNoCounter explains the kernel's error.
func whyNoCounter(err error) string {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENODEV):
		return "the kernel has no such counter, as in most virtual machines"
	case errors.Is(err, unix.ENOSYS):
		return "the kernel has no perf events"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return "the kernel does not allow it; see kernel.perf_event_paranoid"
	}
	return err.Error()
}

// read returns the number of events on all CPUs. It extrapolates if the kernel
// multiplexes counters.
func (c *counter) read() (uint64, error) {
	var sum uint64
	for _, fd := range c.files {
		var b [24]byte // count, ns enabled, ns running
		n, err := unix.Read(fd, b[:])
		if err != nil || n != len(b) {
			return 0, fmt.Errorf("read a counter of a CPU: %d bytes, %w", n, err)
		}
		count, enabled, running := binary.NativeEndian.Uint64(b[:]), binary.NativeEndian.Uint64(b[8:]), binary.NativeEndian.Uint64(b[16:])
		if running > 0 && running < enabled {
			count = uint64(math.Round(float64(count) * float64(enabled) / float64(running)))
		}
		sum += count
	}
	return sum, nil
}

func (c *counter) close() error {
	var errs []error
	for _, fd := range c.files {
		errs = append(errs, unix.Close(fd))
	}
	c.files = nil
	return errors.Join(errs...)
}

// tlb holds the counters on the lines' CPUs.
type tlb struct {
	loads, misses *counter
}

// openTLB starts counting. The error wraps errNoCounter if the events cannot be
// counted.
func openTLB(cpus []int) (t *tlb, err error) {
	t = &tlb{}
	if t.loads, err = openCounter(tlbLoads, cpus); err != nil {
		return nil, err
	}
	if t.misses, err = openCounter(tlbMisses, cpus); err != nil {
		return nil, errors.Join(err, t.loads.close())
	}
	return t, nil
}

// TLB holds the data TLB's counts of a line's CPUs in a round.
type TLB struct {
	Loads  uint64 `json:"loads"`
	Misses uint64 `json:"misses"`
}

// read returns the counts so far; nil without counters.
func (t *tlb) read() (*TLB, error) {
	if t == nil {
		return nil, nil
	}
	loads, err := t.loads.read()
	if err != nil {
		return nil, err
	}
	misses, err := t.misses.read()
	return &TLB{loads, misses}, err
}

func (t *tlb) close() error { return errors.Join(t.loads.close(), t.misses.close()) }

// since returns the difference of two readings.
func (t *TLB) since(before *TLB) *TLB {
	if t == nil || before == nil {
		return nil
	}
	return &TLB{t.Loads - before.Loads, t.Misses - before.Misses}
}

// tlbPercent returns the percentage of loads that missed, in the worst round of a
// mode. ok is false if it was not counted.
func (m *Mode) tlbPercent() (percent float64, ok bool) {
	for _, r := range m.Rounds {
		if r.Round == m.Worst && r.TLB != nil && r.TLB.Loads > 0 {
			return 100 * float64(r.TLB.Misses) / float64(r.TLB.Loads), true
		}
	}
	return 0, false
}
