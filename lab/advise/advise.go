// Package advise measures placements of work on CPUs, and recommends one that is better beyond
// noise.
package advise

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/scon-project/scon/internal/pin"
)

// Sample is the result of one measurement.
type Sample struct {
	P50, P99, P999 float64 // microseconds
	Lost           float64 // packets
}

// Measure measures with the current settings.
type Measure func(ctx context.Context) (Sample, error)

// Candidate is a plan that Run measures.
type Candidate struct {
	Name string   `json:"name"`
	Plan pin.Plan `json:"plan"`
}

// Advice is the result of Run.
type Advice struct {
	Rounds int `json:"rounds"`
	// Recommended is the name of the best candidate that is better beyond noise, ""
	// without one.
	Recommended string `json:"recommended"`
	// Why explains the recommendation.
	Why string `json:"why"`
	// Control compares the unchanged machine with itself.
	Control  Verdict   `json:"control"`
	Verdicts []Verdict `json:"verdicts"`
}

// Verdict compares a candidate with the unchanged machine.
type Verdict struct {
	Name string `json:"name"`
	// Ratios of the candidate's percentiles to those of the unchanged machine in the
	// same round.
	P50  Ratio `json:"p50"`
	P99  Ratio `json:"p99"`
	P999 Ratio `json:"p999"`
	// Lost is the number of additional lost packets in all rounds.
	Lost float64 `json:"lost"`
	// Better in one percentile at least, and Worse in one at least, beyond noise.
	Better bool `json:"better"`
	Worse  bool `json:"worse"`
	// Refused is the setting that the kernel refused; the candidate was not measured.
	Refused string `json:"refused,omitempty"`
}

// Ratio is a median over rounds with its confidence bounds: the error rate of all
// comparisons together is 5 %.
type Ratio struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// below and above report whether the whole interval is on one side of 1.
func (r Ratio) below() bool { return r.High < 1 }
func (r Ratio) above() bool { return r.Low > 1 }

var (
	// ErrApplied is returned when a plan is in force that would be compared with
	// itself.
	ErrApplied = errors.New("a plan is applied: 'scon pin restore' takes it away")
	// ErrRounds is wrapped when there are too few rounds for any result.
	ErrRounds = errors.New("too few rounds")
)

// errorRate is the permitted error rate of all comparisons together.
const errorRate = 0.05

// MinRounds is the minimum number of rounds for a number of candidates.
func MinRounds(candidates int) int {
	n := 1
	for 2*math.Pow(0.5, float64(n)) > level(candidates) {
		n++
	}
	return n
}

// level is the error rate of one comparison: there are three percentiles of each
// candidate and the control.
func level(candidates int) float64 { return errorRate / float64(3*(candidates+1)) }

// Run applies, measures and restores each candidate in each round, between two
// measurements of the unchanged machine. These are compared with each other: if they
// differ, nothing is recommended. The order of the candidates changes from round to
// round. Progress is called before each step.
func Run(ctx context.Context, h *pin.Host, candidates []Candidate, rounds int, measure Measure, progress func(done, total int, what string)) (Advice, error) {
	if least := MinRounds(len(candidates)); rounds < least {
		return Advice{}, fmt.Errorf("%w: %d candidates need %d at least", ErrRounds, len(candidates), least)
	}
	if status, err := h.Inspect(); err != nil {
		return Advice{}, err
	} else if status.Applied {
		return Advice{}, ErrApplied
	}
	t := trial{host: h, measure: measure, progress: progress, total: rounds * (len(candidates) + 2)}
	var nothing, again []Sample
	tried := make([][]Sample, len(candidates))
	refused := make([]string, len(candidates))
	for round := range rounds {
		s, err := t.run(ctx, "nothing")
		if err != nil {
			return Advice{}, err
		}
		nothing = append(nothing, s)
		for i := range candidates {
			at := (i + round) % len(candidates)
			if refused[at] != "" {
				t.done++
				continue
			}
			if s, refused[at], err = t.try(ctx, candidates[at]); err != nil {
				return Advice{}, err
			}
			tried[at] = append(tried[at], s)
		}
		if s, err = t.run(ctx, "nothing, again"); err != nil {
			return Advice{}, err
		}
		again = append(again, s)
	}
	a := Advice{Rounds: rounds, Control: compare("nothing, again", again, nothing, len(candidates)), Verdicts: []Verdict{}}
	for i, c := range candidates {
		v := Verdict{Name: c.Name, Refused: refused[i]}
		if refused[i] == "" {
			v = compare(c.Name, tried[i], between(nothing, again), len(candidates))
		}
		a.Verdicts = append(a.Verdicts, v)
	}
	a.conclude()
	return a, nil
}

// trial runs the measurements.
type trial struct {
	host        *pin.Host
	measure     Measure
	progress    func(done, total int, what string)
	done, total int
}

func (t *trial) run(ctx context.Context, what string) (Sample, error) {
	if t.progress != nil {
		t.progress(t.done, t.total, what)
	}
	t.done++
	if err := ctx.Err(); err != nil {
		return Sample{}, err
	}
	s, err := t.measure(ctx)
	if err != nil {
		return Sample{}, fmt.Errorf("measure %s: %w", what, err)
	}
	return s, nil
}

// try measures with a candidate applied, and always restores the settings.
func (t *trial) try(ctx context.Context, c Candidate) (s Sample, refused string, err error) {
	results, err := t.host.Apply(c.Plan)
	if err != nil {
		return s, "", fmt.Errorf("apply %s: %w", c.Name, err)
	}
	defer func() {
		_, restored := t.host.Restore()
		err = errors.Join(err, restored)
	}()
	for _, r := range results {
		if r.Refused != "" {
			t.done++
			return s, r.Refused, nil
		}
	}
	s, err = t.run(ctx, c.Name)
	return s, "", err
}

// between is what doing nothing gave in the middle of each round.
func between(first, last []Sample) []Sample {
	middle := make([]Sample, len(first))
	for i := range first {
		middle[i] = Sample{
			P50:  math.Sqrt(first[i].P50 * last[i].P50),
			P99:  math.Sqrt(first[i].P99 * last[i].P99),
			P999: math.Sqrt(first[i].P999 * last[i].P999),
			Lost: (first[i].Lost + last[i].Lost) / 2,
		}
	}
	return middle
}

// compare takes the medians of the rounds' ratios.
func compare(name string, is, was []Sample, candidates int) Verdict {
	v := Verdict{Name: name}
	ratio := func(of func(Sample) float64) Ratio {
		ratios := make([]float64, len(is))
		for i := range is {
			ratios[i] = of(is[i]) / of(was[i])
		}
		return medianRatio(ratios, level(candidates))
	}
	v.P50 = ratio(func(s Sample) float64 { return s.P50 })
	v.P99 = ratio(func(s Sample) float64 { return s.P99 })
	v.P999 = ratio(func(s Sample) float64 { return s.P999 })
	for i := range is {
		v.Lost += is[i].Lost - was[i].Lost
	}
	for _, r := range []Ratio{v.P50, v.P99, v.P999} {
		v.Better = v.Better || r.below()
		v.Worse = v.Worse || r.above()
	}
	v.Worse = v.Worse || v.Lost > 0
	return v
}

// medianRatio is the median with the bounds of the sign test, which assumes no
// distribution.
func medianRatio(ratios []float64, level float64) Ratio {
	sorted := slices.Sorted(slices.Values(ratios))
	n := len(sorted)
	left, tail, one := 0, 0.0, math.Pow(0.5, float64(n)) // one: of 'left' on one side
	for {
		tail += one
		if 2*tail > level {
			break
		}
		one *= float64(n-left) / float64(left+1)
		left++
	}
	at := max(left-1, 0)
	median := sorted[n/2]
	if n%2 == 0 {
		median = (sorted[n/2-1] + median) / 2
	}
	return Ratio{Median: median, Low: sorted[at], High: sorted[n-1-at]}
}

// conclude picks the best candidate that is better and in no percentile worse.
func (a *Advice) conclude() {
	if a.Control.Better || a.Control.Worse {
		a.Why = fmt.Sprintf("doing nothing differed from itself (p50 %s, p99 %s, p99.9 %s): the machine is too unsteady for a result",
			a.Control.P50, a.Control.P99, a.Control.P999)
		return
	}
	var best *Verdict
	for i, v := range a.Verdicts {
		if v.Refused == "" && v.Better && !v.Worse && (best == nil || v.P99.Median < best.P99.Median) {
			best = &a.Verdicts[i]
		}
	}
	if best == nil {
		a.Why = "nothing was better beyond noise in one percentile without being worse in another"
		return
	}
	a.Recommended = best.Name
	a.Why = fmt.Sprintf("better beyond noise: p50 %s, p99 %s, p99.9 %s of doing nothing", best.P50, best.P99, best.P999)
}

func (r Ratio) String() string { return fmt.Sprintf("%.2f [%.2f, %.2f]", r.Median, r.Low, r.High) }

// Candidates are the plans for a machine that differ from each other and change
// something.
func Candidates(s pin.Snapshot, devices []string) ([]Candidate, error) {
	var all []Candidate
	var seen [][]pin.Setting
	for _, o := range candidateOptions() {
		o.Devices = devices
		p, err := pin.New(s, o)
		if err != nil {
			return nil, err
		}
		changes := wants(p)
		if len(changes) == 0 || slices.ContainsFunc(seen, func(other []pin.Setting) bool { return slices.Equal(other, changes) }) {
			continue
		}
		seen = append(seen, changes)
		all = append(all, Candidate{Name: o.Name(), Plan: p})
	}
	return all, nil
}

// candidateOptions are ordered by how much they change.
func candidateOptions() []pin.Options {
	var all []pin.Options
	for _, steer := range pin.Steers {
		for _, policy := range pin.Policies {
			if policy == pin.None && steer == pin.Direct {
				all = append(all, pin.Options{Policy: policy, Steer: steer, Power: true}, pin.Options{Policy: policy, Steer: steer, MergeUDP: true})
				continue
			}
			all = append(all, pin.Options{Policy: policy, Steer: steer})
		}
	}
	return all
}

// wants are the settings that change something, without their reasons.
func wants(p pin.Plan) []pin.Setting {
	var list []pin.Setting
	for _, s := range p.Settings {
		if s.Now != s.Want {
			s.Why = ""
			list = append(list, s)
		}
	}
	return list
}
