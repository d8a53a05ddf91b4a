// Package pipebench measures how two containers of one machine exchange bulk data:
// with the pipe's engines, and with the transports available without the pipe
// (PipeDevice, section V, Fig. 9 to 16, 18 and 19).
//
// A sample takes these steps:
//
//  1. The bed is a lab: containers behind a bridge and Docker's rules, a broker
//     of the pipe for the bench alone, and for sockmap a program and its map.
//  2. Take starts a program of examples/ in one container to listen and in
//     another to connect, each on a CPU of its own.
//  3. The two agree on when to measure, count bytes and processor time, and
//     check the received data.
package pipebench

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/scon-project/scon/internal/suggest"
	"github.com/scon-project/scon/lab/bench"
)

// Options of a run.
type Options struct {
	// Modes by name; none means all that this machine supports.
	Modes []string
	// Apps measures the applications instead.
	Apps bool
	// Rounds to measure, and the receiver of their progress.
	Rounds   int
	Progress bench.Progress
	// Notes receives a line for each mode that is left out.
	Notes io.Writer

	small bool // the smallest possible measurement, for tests
}

// Run measures. It returns a result whenever there are samples; see bench.Run.
func Run(ctx context.Context, o Options) (*bench.Result, error) {
	e, err := o.experiment()
	if err != nil {
		return nil, err
	}
	if err := checkPrograms(o.Apps); err != nil {
		return nil, err
	}
	return bench.RunBed(ctx, e, bench.Options{Rounds: o.Rounds, Progress: o.Progress}, func() (bench.Bed, error) {
		return openBed(ctx, o)
	})
}

// Names of the experiments.
const (
	ExperimentName = "pipe"
	AppsName       = "pipe_apps"
)

// Rounds is the default number of rounds.
const Rounds = 3

// Experiments returns the experiments that write results, for bench.ReadResult.
func Experiments() []bench.Experiment {
	return []bench.Experiment{experimentOf(ExperimentName), experimentOf(AppsName)}
}

// experimentOf returns the experiment of a name, without modes.
func experimentOf(name string) bench.Experiment {
	e := bench.Experiment{Name: name, Rounds: Rounds, Pairs: [][2]string{}, Against: against, Table: writeTable}
	for _, s := range stepsOf(name) {
		e.Steps = append(e.Steps, bench.Step{Name: s.name, Metrics: s.metrics})
	}
	return e
}

func (o Options) experimentName() string {
	if o.Apps {
		return AppsName
	}
	return ExperimentName
}

// experiment returns the experiment of the options, with the modes that this
// machine supports.
func (o Options) experiment() (bench.Experiment, error) {
	e := experimentOf(o.experimentName())
	for _, m := range modes {
		if m.refusesApps && o.Apps || len(o.Modes) > 0 && !contains(o.Modes, m.name) {
			continue
		}
		reason := m.missing()
		if reason == nil && !o.Apps && !o.small {
			reason = m.tooManyFiles(manyConnections)
		}
		if reason != nil {
			if len(o.Modes) > 0 {
				return e, fmt.Errorf("mode %s: %w", m.name, reason)
			}
			fmt.Fprintf(o.Notes, "left out: %s: %v\n", m.name, reason)
			continue
		}
		for _, before := range e.Modes {
			e.Pairs = append(e.Pairs, [2]string{m.name, before.Name})
		}
		e.Modes = append(e.Modes, bench.Mode{Name: m.name})
	}
	return e, nil
}

// CheckModes returns an error if a name is no mode of the experiment.
func CheckModes(names []string, apps bool) error {
	known := ModeNames(apps)
	for _, name := range names {
		if !contains(known, name) {
			return fmt.Errorf("no mode %q in %s%s", name, strings.Join(known, ", "), suggest.Hint(name, known))
		}
	}
	return nil
}
