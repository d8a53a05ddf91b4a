package startbench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/tune"
)

// SearchOptions are the options of a search for limits.
type SearchOptions struct {
	Options // one mode, with Admission
	// Trials is the number of trials of each method.
	Trials int
	// Checks is how often each result is measured again, alternately.
	Checks int
	// Others are further numbers of containers for the checks ("Understanding
	// Network Startup for Secure Containers in Multi-Tenant Clouds", Fig. 19).
	Others []int
	// Seed is the seed of both methods.
	Seed uint64
}

// Found is the result of a search, as written to the file.
type Found struct {
	Machine  string `json:"machine"`
	Kernel   string `json:"kernel"`
	Launcher string `json:"launcher"`
	Runtime  string `json:"runtime"`
	Network  string `json:"network"`
	Count    int    `json:"count"`
	Seed     uint64 `json:"seed"`
	// Trials has the trials of each method, in order.
	Trials map[string][]LimitsTrial `json:"trials"`
	// Best has the best limits of each method.
	Best map[string]Limits `json:"best"`
	// Checks has the times in milliseconds with the best limits of each method and
	// without limits ("none"), by the number of containers.
	Checks []LimitsCheck `json:"checks"`

	Interrupted bool      `json:"interrupted"`
	Started     time.Time `json:"started"`
	Seconds     float64   `json:"seconds"`
}

// LimitsTrial is one trial of limits.
type LimitsTrial struct {
	Limits  Limits  `json:"limits"`
	TotalMS float64 `json:"total_ms"`
}

// LimitsCheck compares limits at one number of containers.
type LimitsCheck struct {
	Count   int                       `json:"count"`
	TotalMS map[string][]float64      `json:"total_ms"`
	Ratios  map[string]bench.Interval `json:"ratios"` // of medians, "bayes/none" and so on
}

// NoLimits is the name of the checks without limits.
const NoLimits = "none"

// Search searches the limits under which containers start fastest, by Bayesian
// optimisation and by random search alternately. When ctx ends, it returns the result
// so far with the error.
func Search(ctx context.Context, o SearchOptions) (found *Found, err error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	s := &search{SearchOptions: o, found: newFound(o), total: 2*o.Trials + 3*o.Checks*(1+len(o.Others))}
	defer func() { s.found.Seconds = time.Since(s.found.Started).Seconds() }()
	defer o.Progress.Done()
	if s.bed, err = openBed(ctx, o.Options); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.bed.Close()) }()
	o.Progress.Step(0, s.total, "make ready")
	if err := s.bed.Ready(ctx, bench.Mode{Name: o.Modes[0].Name}); err != nil {
		return nil, err
	}
	err = s.try(ctx)
	if err == nil {
		err = s.check(ctx)
	}
	if ctx.Err() != nil {
		s.found.Interrupted = true
		err = context.Cause(ctx)
	}
	return s.found, err
}

func newFound(o SearchOptions) *Found {
	f := &Found{
		Launcher: o.Launcher, Runtime: o.Runtime, Network: o.Modes[0].Name, Count: o.Count, Seed: o.Seed,
		Trials: map[string][]LimitsTrial{}, Best: map[string]Limits{}, Checks: []LimitsCheck{}, Started: time.Now(),
	}
	f.Machine, f.Kernel = bench.Machine()
	return f
}

// search is the state of a search.
type search struct {
	SearchOptions
	bed         *bed
	found       *Found
	done, total int
}

// space returns the space of limits: up to all containers in each stage.
func (s *search) space() (space tune.Space) {
	for _, name := range LimitNames {
		space = append(space, tune.Parameter{Name: name, Low: 1, High: s.Count})
	}
	return space
}

// try carries out the trials of both methods alternately.
func (s *search) try(ctx context.Context) error {
	space := s.space()
	bayes, err := tune.Bayes(space, s.Seed)
	if err != nil {
		return err
	}
	random, err := tune.Random(space, s.Seed)
	if err != nil {
		return err
	}
	for range s.Trials {
		for _, method := range []*tune.Search{bayes, random} {
			err := method.Step(ctx, func(ctx context.Context, p tune.Point) (float64, error) {
				limits := Limits(space.Map(p))
				total, err := s.measure(ctx, limits, s.Count, fmt.Sprintf("%s, %s", method.Name, limits))
				if err == nil {
					s.found.Trials[method.Name] = append(s.found.Trials[method.Name], LimitsTrial{limits, total})
				}
				return total, err
			})
			if err != nil {
				return err
			}
			if best, ok := method.Best(); ok {
				s.found.Best[method.Name] = Limits(space.Map(best.Point))
			}
		}
	}
	return nil
}

// measure returns the start time of n containers under limits.
func (s *search) measure(ctx context.Context, l Limits, n int, what string) (float64, error) {
	s.Progress.Step(s.done, s.total, what)
	s.done++
	if err := l.set(s.bed.agent); err != nil {
		return 0, err
	}
	_, values, err := s.bed.measureStart(ctx, Command{Count: n}, true)
	return values["total_ms"], errors.Join(err, s.bed.empty(context.WithoutCancel(ctx)))
}

// check measures the results again, also at other numbers of containers.
func (s *search) check(ctx context.Context) error {
	methods := []string{NoLimits, "bayes", "random"}
	for _, n := range append([]int{s.Count}, s.Others...) {
		c := LimitsCheck{Count: n, TotalMS: map[string][]float64{}, Ratios: map[string]bench.Interval{}}
		for range s.Checks {
			for _, method := range methods {
				limits := s.found.Best[method] // none for NoLimits
				total, err := s.measure(ctx, limits, n, fmt.Sprintf("check %s with %d containers", method, n))
				if err != nil {
					return err
				}
				c.TotalMS[method] = append(c.TotalMS[method], total)
			}
		}
		for _, pair := range [][2]string{{"bayes", NoLimits}, {"random", NoLimits}, {"bayes", "random"}} {
			c.Ratios[pair[0]+"/"+pair[1]] = bench.RatioOfMedians(c.TotalMS[pair[0]], c.TotalMS[pair[1]])
		}
		s.found.Checks = append(s.found.Checks, c)
	}
	return nil
}
