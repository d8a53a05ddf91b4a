package bench

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Distance is how far apart two CPUs are: virtual CPUs move between the cores
// and sockets of their host, and with them every figure that needs two of them.
type Distance struct {
	// NS is the median time that a written cache line takes to the other
	// CPU, in nanoseconds.
	NS float64 `json:"ns"`
	// Class is NEAR, FAR or ONE; figures of different classes do not compare.
	Class string `json:"class"`
}

func (d Distance) String() string {
	switch d.Class {
	case "":
		return "not measured"
	case OneCPU:
		return "only one"
	}
	return fmt.Sprintf("%s (%.0f ns)", d.Class, d.NS)
}

// Classes of a Distance, and the bound between them in nanoseconds.
const (
	Near   = "NEAR"
	Far    = "FAR"
	OneCPU = "ONE" // there is only one CPU to run on

	nearBelow = 150
)

// How often the cache line goes back and forth in one batch, and how many
// batches the median is taken of.
const (
	distanceTurns   = 2000
	distanceBatches = 15

	distancePatience = 10 * time.Second // an idle machine takes some 10 ms
)

// measureDistance lets two threads pass a cache line back and forth.
func measureDistance(a, b int) (Distance, error) {
	if a == b {
		return Distance{Class: OneCPU}, nil
	}
	var line struct {
		_    [64]byte
		turn atomic.Int64
		_    [64]byte
	}
	stop := time.Now().Add(distancePatience)
	var gone atomic.Bool // one of the two has given up
	// play waits for the line to show every turn of its parity and writes the
	// next; it gives up when the time is over.
	play := func(cpu int, parity int64, batches []float64) (err error) {
		defer func() { gone.Store(gone.Load() || err != nil) }()
		unpin, err := pinThread(cpu)
		if err != nil {
			return err
		}
		defer unpin()
		begun := time.Now()
		for n := parity; n < 2*distanceTurns*distanceBatches; n += 2 {
			for spins := 1; line.turn.Load() != n; spins++ {
				if spins%(1<<16) != 0 {
					continue
				}
				if gone.Load() || time.Now().After(stop) {
					return fmt.Errorf("CPUs %d and %d were not ours at the same time for long enough within %s: other work keeps them busy", a, b, distancePatience)
				}
			}
			if batch := n / (2 * distanceTurns); batches != nil && (n+2)/(2*distanceTurns) > batch {
				now := time.Now()
				batches[batch] = float64(now.Sub(begun)) / (2 * distanceTurns)
				begun = now
			}
			line.turn.Store(n + 1)
		}
		return nil
	}

	other := make(chan error)
	go func() { other <- play(b, 1, nil) }()
	batches := make([]float64, distanceBatches)
	err := play(a, 0, batches)
	if err := errors.Join(<-other, err); err != nil {
		return Distance{}, fmt.Errorf("measure the distance of the CPUs: %w", err)
	}
	d := Distance{NS: median(batches), Class: Near}
	if d.NS >= nearBelow {
		d.Class = Far
	}
	return d, nil
}

// pinThread binds the calling goroutine to a thread and that to one CPU, until
// unpin.
func pinThread(cpu int) (unpin func(), err error) {
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
