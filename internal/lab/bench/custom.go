package bench

import "context"

// Bed is where an experiment of another package takes place.
type Bed interface {
	// Ready makes the bed ready for a mode.
	Ready(ctx context.Context, mode Mode) error
	// Clear undoes Ready.
	Clear() error
	// Take measures one sample of a step; the bed is ready for the mode.
	Take(ctx context.Context, mode Mode, step Step) (Sample, error)
	// Close removes the bed.
	Close() error
}

// RunBed carries out an experiment in a bed that it opens and closes; see Run.
func RunBed(ctx context.Context, e Experiment, o Options, open func() (Bed, error)) (*Result, error) {
	return runIn(ctx, e, o, func() (closableBed, error) {
		b, err := open()
		if err != nil {
			return nil, err
		}
		return customBed{b}, nil
	})
}

// customBed is a Bed as a testbed.
type customBed struct{ Bed }

func (b customBed) ready(ctx context.Context, mode Mode) error { return b.Ready(ctx, mode) }

func (b customBed) clear() error { return b.Clear() }

func (b customBed) take(ctx context.Context, mode Mode, step Step) (Sample, error) {
	return b.Take(ctx, mode, step)
}

// distance says on what kind of machine a run took place; on a busy one the two
// CPUs may not meet in time, which is no reason to measure nothing.
func (customBed) distance() (Distance, error) {
	a, b, err := TwoCPUs()
	if err != nil {
		return Distance{}, err
	}
	d, err := measureDistance(a, b)
	if err != nil {
		return Distance{}, nil
	}
	return d, nil
}
