package startbench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/scon-project/scon/internal/suggest"
	"github.com/scon-project/scon/lab/bench"
)

// step is one kind of measurement.
type step struct {
	name    string
	short   string
	metrics []bench.Metric
	take    func(ctx context.Context, b *bed, m Mode) (bench.Sample, error)
}

// Names of steps.
const (
	StepStart     = "start"
	StepAdd       = "add"
	StepSustained = "sustained"
	StepQuiet     = "quiet"
)

// Sizes of the steps.
const (
	addCount         = 20 // ADDs at each degree of parallelism
	sustainedTimes   = 4  // multiple of the containers of a start
	sustainedWorkers = 8
)

// quietTime is the time without demand between two bursts. Tests shorten it.
var quietTime = 10 * time.Second

var steps []step

func init() { // avoids an initialisation cycle: the steps' functions refer to steps
	steps = []step{
		{StepStart, "all containers at once", []bench.Metric{
			{Name: "total_ms", Unit: "ms"}, {Name: "add_p50_ms", Unit: "ms"}, {Name: "add_p99_ms", Unit: "ms"},
			{Name: "cpu_s", Unit: "s"}, {Name: "agent_cpu_s", Unit: "s"},
			{Name: "netns_ms", Unit: "ms"}, {Name: "addcni_ms", Unit: "ms"}, {Name: "cgroup_ms", Unit: "ms"},
			{Name: "attachif_ms", Unit: "ms"}, {Name: "startvm_ms", Unit: "ms"}, {Name: "runpod_ms", Unit: "ms"},
			{Name: "ping_ms", Unit: "ms"},
			{Name: "rtnl_waits", Unit: ""}, {Name: "rtnl_wait_ms", Unit: "ms"}, {Name: "rtnl_longest_ms", Unit: "ms"},
			{Name: "spin_waits", Unit: ""}, {Name: "spin_wait_ms", Unit: "ms"}, {Name: "mutex_wait_ms", Unit: "ms"},
			{Name: "pooled", Unit: ""},
			{Name: "kernel_kib", Unit: "KiB"}, {Name: "prepared_kib", Unit: "KiB"},
		}, takeStart},
		{StepAdd, "CNI ADD alone, one and four at a time", []bench.Metric{
			{Name: "add1_p50_ms", Unit: "ms"}, {Name: "add1_p99_ms", Unit: "ms"},
			{Name: "add4_p50_ms", Unit: "ms"}, {Name: "add4_p99_ms", Unit: "ms"},
		}, takeAdd},
		{StepSustained, "four times as many containers, eight at a time", []bench.Metric{
			{Name: "sustained_per_s", Unit: "1/s"}, {Name: "sustained_pooled", Unit: ""},
		}, takeSustained},
		{StepQuiet, "all at once again, ten seconds after all were removed", []bench.Metric{
			{Name: "quiet_total_ms", Unit: "ms"}, {Name: "quiet_pooled", Unit: ""},
		}, takeQuiet},
	}
}

// StepNames returns the names of the steps in order.
func StepNames() (names []string) {
	for _, s := range steps {
		names = append(names, s.name)
	}
	return names
}

// CheckSteps refuses unknown names of steps.
func CheckSteps(names []string) error {
	for _, name := range names {
		if !slices.Contains(StepNames(), name) {
			return fmt.Errorf("no step %q%s", name, suggest.Hint(name, StepNames()))
		}
	}
	return nil
}

// ExperimentName is the experiment's name in results.
const ExperimentName = "startup"

// experiment returns the experiment for the options.
func (o Options) experiment() bench.Experiment {
	e := Experiment()
	e.Steps = nil
	for _, s := range steps {
		if slices.Contains(o.Steps, s.name) || len(o.Steps) == 0 && (s.name == StepStart || s.name == StepAdd) {
			e.Steps = append(e.Steps, bench.Step{Name: s.name, Metrics: s.metrics})
		}
	}
	for _, m := range o.Modes {
		e.Modes = append(e.Modes, bench.Mode{Name: m.Name})
	}
	for _, a := range o.Modes {
		for _, b := range o.Modes {
			if a.Name != b.Name {
				e.Pairs = append(e.Pairs, [2]string{a.Name, b.Name})
			}
		}
	}
	return e
}

// Experiment returns the experiment of stored results, for bench.ReadResult.
func Experiment() bench.Experiment {
	e := bench.Experiment{
		Name:    ExperimentName,
		Short:   "concurrent start of containers",
		Pairs:   [][2]string{},
		Against: against,
		Table:   WriteTable,
	}
	for _, s := range steps {
		e.Steps = append(e.Steps, bench.Step{Name: s.name, Metrics: s.metrics})
	}
	return e
}
