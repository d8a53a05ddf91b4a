package bench

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Options for Run.
type Options struct {
	// Rounds to measure; 0 for the experiment's default.
	Rounds int
	// Progress receives a report of every step.
	Progress Progress
	// Taken is called with every sample of the result, if it is not nil.
	Taken func(*Result, Sample)
}

// Progress follows the steps of a run.
type Progress interface {
	// Step reports that done of total steps are complete, and names the next one.
	Step(done, total int, next string)
	// Done ends the report.
	Done()
}

// testbed is the environment in which a run measures.
type testbed interface {
	// ready prepares the bed for a mode.
	ready(ctx context.Context, mode Mode) error
	// clear undoes ready.
	clear() error
	// take measures one sample of a step; ready was called for the mode.
	take(ctx context.Context, mode Mode, step Step) (Sample, error)
	// distance measures the distance of the CPUs that the traffic runs on.
	distance() (Distance, error)
}

// Run runs an experiment. If there are samples, it returns a result even with an
// error: of a cancelled context, or of single samples, which the result lists.
func Run(ctx context.Context, e Experiment, o Options) (*Result, error) {
	return runIn(ctx, e, o, func() (closableBed, error) { return openBed(e) })
}

// closableBed is a testbed that its opener closes.
type closableBed interface {
	testbed
	Close() error
}

// runIn runs an experiment in a bed that it opens and closes.
func runIn(ctx context.Context, e Experiment, o Options, open func() (closableBed, error)) (result *Result, err error) {
	started := time.Now()
	bed, err := open()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, bed.Close()) }()
	result, err = runRounds(ctx, e, o, bed)
	if result != nil {
		result.took(started)
	}
	return result, err
}

// took records the start and the duration of the whole run.
func (r *Result) took(started time.Time) {
	r.Started, r.Seconds = started, time.Since(started).Seconds()
}

// runRounds measures every step of every mode, round by round.
func runRounds(ctx context.Context, e Experiment, o Options, bed testbed) (*Result, error) {
	if o.Rounds == 0 {
		o.Rounds = e.Rounds
	}
	result := newResult(e, o.Rounds)
	var err error
	if result.Distance.Before, err = bed.distance(); err != nil {
		return nil, err
	}
	defer o.Progress.Done()
	total := o.Rounds * len(e.Modes) * len(e.Steps)
	keep := func(s Sample) {
		result.add(s)
		if o.Taken != nil {
			o.Taken(result, s)
		}
	}
	for round := range o.Rounds {
		for i, mode := range e.Modes {
			done := (round*len(e.Modes) + i) * len(e.Steps)
			report := func(step int) {
				o.Progress.Step(done+step, total, fmt.Sprintf("round %d of %d, %s %s",
					round+1, o.Rounds, mode.Name, e.Steps[step].Name))
			}
			result.visit(ctx, bed, round+1, mode, e.Steps, report, keep)
			if ctx.Err() != nil {
				result.Interrupted = true
				result.summarize()
				return result, context.Cause(ctx)
			}
		}
	}
	if result.Distance.After, err = bed.distance(); err != nil {
		result.Errors = append(result.Errors, err.Error())
	}
	result.summarize()
	if n := len(result.Errors); n > 0 {
		return result, fmt.Errorf("%d errors; the first: %s", n, result.Errors[0])
	}
	return result, nil
}

// attempts per sample: other work on the machine can keep the traffic from its CPUs
// for so long that a sample is useless.
const attempts = 3

// visit measures all steps of one mode in one round. It records errors in the
// result, except that of the cancelled context.
func (r *Result) visit(ctx context.Context, bed testbed, round int, mode Mode, steps []Step, report func(step int), keep func(Sample)) {
	note := func(list *[]string, what string, err error) {
		if err != nil && ctx.Err() == nil {
			*list = append(*list, fmt.Sprintf("round %d, %s, %s: %v", round, mode.Name, what, err))
		}
	}
	report(0)
	defer func() { note(&r.Errors, "clear", bed.clear()) }()
	if err := bed.ready(ctx, mode); err != nil {
		note(&r.Errors, "make ready", err)
		return
	}
	for i, step := range steps {
		report(i)
		sample, err := bed.take(ctx, mode, step)
		for attempt := 1; err != nil && ctx.Err() == nil && attempt < attempts; attempt++ {
			note(&r.Retries, step.Name, err)
			sample, err = bed.take(ctx, mode, step)
		}
		if err != nil {
			note(&r.Errors, step.Name, err)
			if ctx.Err() != nil {
				return
			}
			continue
		}
		sample.Round, sample.Mode, sample.Step = round, mode.Name, step.Name
		keep(sample)
	}
}
