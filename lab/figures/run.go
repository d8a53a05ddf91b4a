package figures

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/profile"
)

// Options for Run.
type Options struct {
	// IDs of the figures to measure; none means all.
	IDs []string
	// Effort to spend.
	Effort Effort
	// Dir is the folder of results, report and plots; it is created if needed.
	Dir string
	// Progress receives a report of every step, in milliseconds of the estimated
	// duration of all steps.
	Progress bench.Progress
}

// Run measures the figures and draws them. When ctx ends or samples fail, it writes
// and draws what was measured and returns the error.
func Run(ctx context.Context, o Options) error {
	chosen, withProfile, err := sourcesOf(o.IDs)
	if err != nil {
		return err
	}
	if err := Check(o.IDs); err != nil {
		return err
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return err
	}
	defer o.Progress.Done()
	plan := newPlan(chosen, o.Effort, o.Progress)
	if withProfile {
		plan.total += profileTakes(o.Effort)
	}
	var errs []error
	for i, s := range chosen {
		result, err := bench.RunTraffic(ctx, plan.experiments[i], bench.Options{Progress: plan.progressOf(i)})
		if result != nil && len(result.Samples) > 0 {
			err = errors.Join(err, result.WriteFile(resultPath(o.Dir, s.name)))
		}
		if ctx.Err() != nil {
			errs = append(errs, context.Cause(ctx))
			break
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
		}
	}
	if withProfile && ctx.Err() == nil {
		errs = append(errs, measureProfile(ctx, o.Dir, o.Effort.ProfileRounds, plan.last()))
	}
	if err := Draw(o.Dir); len(errs) == 0 || !errors.Is(err, errNoResult) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// resultPath returns the file of a source's result.
func resultPath(dir, source string) string { return filepath.Join(dir, source+".json") }

// visitOverhead is the time per step for starting programs or the daemon.
const visitOverhead = 300 * time.Millisecond

// plan estimates the durations of all experiments, so that their progress adds up.
type plan struct {
	experiments []bench.Experiment
	steps       [][]time.Duration // of a mode's visit, by experiment
	total       time.Duration
	progress    bench.Progress
}

func newPlan(chosen []source, e Effort, progress bench.Progress) *plan {
	p := &plan{progress: progress}
	for _, s := range chosen {
		x := s.prepare(e)
		var steps []time.Duration
		for _, step := range x.Steps {
			steps = append(steps, s.takes(e, step)+visitOverhead)
		}
		p.experiments = append(p.experiments, x)
		p.steps = append(p.steps, steps)
		p.total += p.takes(len(p.steps) - 1)
	}
	return p
}

// takes returns the estimated duration of an experiment.
func (p *plan) takes(i int) time.Duration {
	x := p.experiments[i]
	return time.Duration(x.Rounds*len(x.Modes)) * sum(p.steps[i])
}

// progressOf returns the progress of one experiment.
func (p *plan) progressOf(i int) bench.Progress {
	progress := experimentProgress{plan: p, steps: p.steps[i], name: p.experiments[i].Name}
	for earlier := range i {
		progress.before += p.takes(earlier)
	}
	return progress
}

// profileTakes returns the estimated duration of a profile: each mode is measured
// with all waypoints, with two, and without any.
func profileTakes(e Effort) time.Duration {
	return time.Duration(e.ProfileRounds*len(profile.Modes)) * (3*profileTime + visitOverhead)
}

// last returns the progress of the work after all experiments.
func (p *plan) last() bench.Progress {
	last := lastProgress{plan: p}
	for i := range p.experiments {
		last.before += p.takes(i)
	}
	return last
}

// lastProgress divides the remaining time among its steps.
type lastProgress struct {
	*plan
	before time.Duration
}

func (p lastProgress) Step(done, total int, next string) {
	over := p.before + (p.total-p.before)*time.Duration(done)/time.Duration(max(total, 1))
	p.progress.Step(int(over.Milliseconds()), int(p.total.Milliseconds()), profileSource+", "+next)
}

// Done does nothing: Run ends the progress.
func (lastProgress) Done() {}

// experimentProgress converts the steps of one experiment to time of the whole run.
type experimentProgress struct {
	*plan
	steps  []time.Duration
	before time.Duration // duration of the experiments before this one
	name   string
}

func (p experimentProgress) Step(done, _ int, next string) {
	visits, steps := done/len(p.steps), done%len(p.steps)
	over := p.before + time.Duration(visits)*sum(p.steps) + sum(p.steps[:steps])
	p.progress.Step(int(over.Milliseconds()), int(p.total.Milliseconds()), p.name+", "+next)
}

// Done does nothing: Run ends the progress.
func (experimentProgress) Done() {}

func sum(times []time.Duration) (total time.Duration) {
	for t := range slices.Values(times) {
		total += t
	}
	return total
}
