// Package cores measures the distance between processors.
package cores

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Bounce are the parameters of a measurement.
type Bounce struct {
	RoundTrips int           // how often the cache line goes back and forth in a batch
	Batches    int           // how many results there are
	Patience   time.Duration // how long it may take on a machine with other work
}

// Measure has two threads on processors a and b pass a cache line back and
// forth. It returns the time in nanoseconds that the line takes to the other
// processor, for each batch.
func (o Bounce) Measure(a, b int) (batches []float64, err error) {
	var line struct {
		_    [64]byte
		step atomic.Int64
		_    [64]byte
	}
	stop := time.Now().Add(o.Patience)
	rounds := int64(o.RoundTrips)
	var gone atomic.Bool // one thread has timed out
	// play waits for each value of its parity and writes the next one, until
	// the time is over.
	play := func(cpu int, parity int64, batches []float64) (err error) {
		defer func() { gone.Store(gone.Load() || err != nil) }()
		unpin, err := Pin(cpu)
		if err != nil {
			return err
		}
		defer unpin()
		begun := time.Now()
		for n := parity; n < 2*rounds*int64(o.Batches); n += 2 {
			for spins := 1; line.step.Load() != n; spins++ {
				if spins%(1<<12) != 0 {
					continue
				}
				if gone.Load() || time.Now().After(stop) {
					return fmt.Errorf("CPUs %d and %d were not ours at the same time for long enough within %s: other work keeps them busy", a, b, o.Patience)
				}
			}
			if batch := n / (2 * rounds); batches != nil && (n+2)/(2*rounds) > batch {
				now := time.Now()
				batches[batch] = float64(now.Sub(begun)) / float64(2*rounds)
				begun = now
			}
			line.step.Store(n + 1)
		}
		return nil
	}

	other := make(chan error)
	go func() { other <- play(b, 1, nil) }()
	batches = make([]float64, o.Batches)
	err = play(a, 0, batches)
	if err := errors.Join(<-other, err); err != nil {
		return nil, fmt.Errorf("measure the distance of the CPUs: %w", err)
	}
	return batches, nil
}

// Pin locks the calling goroutine to a thread and the thread to one CPU, until
// unpin.
func Pin(cpu int) (unpin func(), err error) {
	runtime.LockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("read the affinity: %w", err)
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("pin to CPU %d: %w", cpu, err)
	}
	return func() {
		unix.SchedSetaffinity(0, &before)
		runtime.UnlockOSThread()
	}, nil
}
