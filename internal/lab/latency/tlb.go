package latency

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unsafe"

	"golang.org/x/sys/unix"
)

// errNoCounter is wrapped when the CPUs, or who runs them, count no such event.
var errNoCounter = errors.New("not available here")

// event is what perf_event_open(2) counts.
type event struct {
	kind   uint32
	config uint64
}

// What the data TLBs of CPUs do, as in the paper's Fig. 4: lookups of loads, and
// those that missed.
var (
	tlbLoads  = event{unix.PERF_TYPE_HW_CACHE, unix.PERF_COUNT_HW_CACHE_DTLB | unix.PERF_COUNT_HW_CACHE_RESULT_ACCESS<<16}
	tlbMisses = event{unix.PERF_TYPE_HW_CACHE, unix.PERF_COUNT_HW_CACHE_DTLB | unix.PERF_COUNT_HW_CACHE_RESULT_MISS<<16}
)

// dtlbMiss names what they tell.
const dtlbMiss = "dtlb_miss"

// counter counts an event on some CPUs.
type counter struct {
	files []int
}

// openCounter begins to count. The error wraps errNoCounter if nothing counts the
// event.
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

// whyNoCounter says what the kernel's no means.
func whyNoCounter(err error) string {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENODEV):
		return "the kernel sees no such counter, as in most virtual machines"
	case errors.Is(err, unix.ENOSYS):
		return "the kernel has no perf events"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return "the kernel does not allow it; see kernel.perf_event_paranoid"
	}
	return err.Error()
}

// read is how often the event has happened, on all CPUs together. Where counters
// take turns, it is extrapolated.
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

// tlb counts on the CPUs of the lines.
type tlb struct {
	loads, misses *counter
}

// openTLB begins to count. The error wraps errNoCounter where nothing counts.
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

// TLB is what the data TLBs of a line's CPUs did in a round.
type TLB struct {
	Loads  uint64 `json:"loads"`
	Misses uint64 `json:"misses"`
}

// read is what they did so far; nil where nobody counts.
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

// since is what they did between two readings.
func (t *TLB) since(before *TLB) *TLB {
	if t == nil || before == nil {
		return nil
	}
	return &TLB{t.Loads - before.Loads, t.Misses - before.Misses}
}

// percent of the loads that missed, in the worst round of a mode; ok tells whether
// that was counted.
func (m *Mode) tlbPercent() (percent float64, ok bool) {
	for _, r := range m.Rounds {
		if r.Round == m.Worst && r.TLB != nil && r.TLB.Loads > 0 {
			return 100 * float64(r.TLB.Misses) / float64(r.TLB.Loads), true
		}
	}
	return 0, false
}
