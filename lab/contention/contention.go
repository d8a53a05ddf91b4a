// Package contention measures how long tasks wait for locks of the kernel, RTNL
// among them, by the tracepoints lock:contention_begin and lock:contention_end
// (Linux 5.19). Uncontended locks are not counted.
package contention

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
)

//go:generate go tool bpf2go -target bpfel -cc clang -type lock_waits -cflags "-O2 -g -Wall -Werror -mcpu=v3" contention ../bpf/contention.bpf.c

// ErrNotSupported means that the kernel lacks the tracepoints.
var ErrNotSupported = errors.New("no tracepoints of lock contention (Linux 5.19 has them)")

// Kinds of locks, from the kernel's trace/events/lock.h.
const (
	flagSpin  = 1 << 0
	flagMutex = 1 << 5
)

// Waits sums up the waits for one lock or several.
type Waits struct {
	Waits   uint64
	Waited  time.Duration // sum of all waits
	Longest time.Duration
}

func (w *Waits) add(l contentionLockWaits) {
	w.Waits += l.Waits
	w.Waited += time.Duration(l.WaitedNs)
	w.Longest = max(w.Longest, time.Duration(l.LongestNs))
}

// Counted is the result of a Meter.
type Counted struct {
	RTNL  Waits
	Spin  Waits // spin locks
	Mutex Waits // mutexes other than RTNL
	Other Waits // semaphores and the like
}

// Meter measures as long as it is open.
type Meter struct {
	objects contentionObjects
	links   []link.Link
	rtnl    uint64 // address of the lock
}

// Open attaches the probes. They count the waits of the tasks in a cgroup v2
// directory, or of all tasks if cgroup is "". The error wraps ErrNotSupported if the
// kernel lacks the tracepoints.
func Open(cgroup string) (m *Meter, err error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("lift the memlock limit: %w", err)
	}
	spec, err := loadContention()
	if err != nil {
		return nil, err
	}
	if err := HerePIDs(spec); err != nil {
		return nil, err
	}
	m = &Meter{}
	if err := spec.LoadAndAssign(&m.objects, nil); err != nil {
		return nil, fmt.Errorf("load the probes of locks: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	// Set the filter before the probes are attached, so that they count no other task.
	if cgroup != "" {
		if err := m.only(cgroup); err != nil {
			return m, fmt.Errorf("watch the tasks of %s: %w", cgroup, err)
		}
	}
	for _, probe := range []link.RawTracepointOptions{
		{Name: "contention_begin", Program: m.objects.ContentionBegin},
		{Name: "contention_end", Program: m.objects.ContentionEnd},
	} {
		l, err := link.AttachRawTracepoint(probe)
		if errors.Is(err, os.ErrNotExist) {
			return m, ErrNotSupported
		}
		if err != nil {
			return m, fmt.Errorf("attach to lock:%s: %w", probe.Name, err)
		}
		m.links = append(m.links, l)
	}
	if err := m.findRTNL(); err != nil {
		return m, fmt.Errorf("find RTNL: %w", err)
	}
	return m, m.Reset()
}

func (m *Meter) only(cgroup string) error {
	dir, err := os.Open(cgroup)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := m.objects.Waiters.Put(uint32(0), uint32(dir.Fd())); err != nil {
		return err
	}
	return m.objects.ByCgroup.Set(uint32(1))
}

// Reset sets all counters to zero.
func (m *Meter) Reset() error {
	addresses, err := m.addresses()
	if err != nil {
		return err
	}
	for _, address := range addresses {
		if err := m.objects.Locks.Delete(address); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forget waits: %w", err)
		}
	}
	return nil
}

func (m *Meter) addresses() (all []uint64, err error) {
	err = m.each(func(address uint64, _ contentionLockWaits) { all = append(all, address) })
	return all, err
}

// each calls fn for every contended lock.
func (m *Meter) each(fn func(address uint64, l contentionLockWaits)) error {
	var address uint64
	var lock contentionLockWaits
	entries := m.objects.Locks.Iterate()
	for entries.Next(&address, &lock) {
		fn(address, lock)
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("read waits: %w", err)
	}
	return nil
}

// Read returns the measurement since Open or Reset.
func (m *Meter) Read() (c Counted, err error) {
	err = m.each(func(address uint64, l contentionLockWaits) {
		switch {
		case address == m.rtnl:
			c.RTNL.add(l)
		case l.Flags&flagMutex != 0:
			c.Mutex.add(l)
		case l.Flags&flagSpin != 0:
			c.Spin.add(l)
		default:
			c.Other.add(l)
		}
	})
	return c, err
}

// Close detaches the probes.
func (m *Meter) Close() error {
	var errs []error
	for _, l := range m.links {
		errs = append(errs, l.Close())
	}
	return errors.Join(append(errs, m.objects.Close())...)
}
