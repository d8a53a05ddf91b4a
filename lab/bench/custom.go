package bench

import "context"

// Bed is the testbed of an experiment in another package.
type Bed interface {
	// Ready prepares the bed for a mode.
	Ready(ctx context.Context, mode Mode) error
	// Clear undoes Ready.
	Clear() error
	// Take measures one sample of a step after Ready.
	Take(ctx context.Context, mode Mode, step Step) (Sample, error)
	// Close removes the bed.
	Close() error
}

// RunBed runs an experiment in a bed that it opens and closes; see Run.
func RunBed(ctx context.Context, e Experiment, o Options, open func() (Bed, error)) (*Result, error) {
	return runIn(ctx, e, o, func() (closableBed, error) {
		b, err := open()
		if err != nil {
			return nil, err
		}
		return customBed{b}, nil
	})
}

// customBed makes a Bed a testbed.
type customBed struct{ Bed }

func (b customBed) ready(ctx context.Context, mode Mode) error { return b.Ready(ctx, mode) }

func (b customBed) clear() error { return b.Clear() }

func (b customBed) take(ctx context.Context, mode Mode, step Step) (Sample, error) {
	return b.Take(ctx, mode, step)
}

// distance measures the distance of the two CPUs. On a busy machine they may fail
// to exchange the cache line in time; the run continues without a distance then.
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
