package bench

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/scon-project/scon/internal/host/cores"
)

// bounces are the parameters of a measurement.
type bounces struct {
	roundTrips int           // how often the cache line goes back and forth in a batch
	batches    int           // how many results there are
	patience   time.Duration // how long it may take on a machine with other work
}

// measure has two threads on processors a and b pass a cache line back and
// forth. It returns the time in nanoseconds that the line takes to the other
// processor, for each batch.
func (o bounces) measure(a, b int) (batches []float64, err error) {
	var line struct {
		_    [64]byte
		step atomic.Int64
		_    [64]byte
	}
	stop := time.Now().Add(o.patience)
	rounds := int64(o.roundTrips)
	var gone atomic.Bool // one thread has timed out
	// play waits for each value of its parity and writes the next one, until
	// the time is over.
	play := func(cpu int, parity int64, batches []float64) (err error) {
		defer func() { gone.Store(gone.Load() || err != nil) }()
		unpin, err := cores.Pin(cpu)
		if err != nil {
			return err
		}
		defer unpin()
		begun := time.Now()
		for n := parity; n < 2*rounds*int64(o.batches); n += 2 {
			for spins := 1; line.step.Load() != n; spins++ {
				if spins%(1<<12) != 0 {
					continue
				}
				if gone.Load() || time.Now().After(stop) {
					return fmt.Errorf("CPUs %d and %d were not ours at the same time for long enough within %s: other work keeps them busy", a, b, o.patience)
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
	batches = make([]float64, o.batches)
	err = play(a, 0, batches)
	if err := errors.Join(<-other, err); err != nil {
		return nil, fmt.Errorf("measure the distance of the CPUs: %w", err)
	}
	return batches, nil
}
