// Package tune searches the concurrency limits under which containers start fastest
// ("Understanding Network Startup for Secure Containers in Multi-Tenant Clouds", 5.2
// and Fig. 16, 17 and 19).
//
// Steps of a search:
//
//  1. A Space has the ranges of the integer parameters, on a logarithmic scale.
//  2. The first trials are spread over the space.
//  3. Fit fits a Gaussian process to the trials so far.
//  4. The next trial is at the point of the largest expected improvement.
//
// Random search, without 3 and 4, is the baseline.
package tune

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
)

// Trial is one measurement.
type Trial struct {
	Point Point   `json:"point"`
	Value float64 `json:"value"` // smaller is better
}

// Search proposes trials.
type Search struct {
	Name  string
	space Space
	// next proposes the point of the next trial.
	next   func(trials []Trial) (Point, error)
	Trials []Trial
}

// candidates is the number of points at which the expected improvement is computed,
// half of them around the best trial.
const candidates = 1000

// Bayes proposes the point of the largest expected improvement, after some initial
// trials.
func Bayes(s Space, seed uint64) (*Search, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	random := rand.New(rand.NewPCG(seed, 1))
	first := s.spread(2*len(s)+1, random)
	next := func(trials []Trial) (Point, error) {
		if len(trials) < len(first) {
			return first[len(trials)], nil
		}
		return s.promising(trials, random)
	}
	return &Search{Name: "bayes", space: s, next: next}, nil
}

// Random proposes points independently of earlier trials.
func Random(s Space, seed uint64) (*Search, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	random := rand.New(rand.NewPCG(seed, 2))
	next := func([]Trial) (Point, error) { return s.random(random), nil }
	return &Search{Name: "random", space: s, next: next}, nil
}

// promising returns the candidate with the largest expected improvement.
func (s Space) promising(trials []Trial, random *rand.Rand) (Point, error) {
	places := make([][]float64, len(trials))
	values := make([]float64, len(trials))
	for i, t := range trials {
		places[i], values[i] = s.place(t.Point), t.Value
	}
	process, err := Fit(places, values)
	if err != nil {
		return nil, err
	}
	// The lowest measurement may be low because of noise. The mean of the process is
	// not.
	best, at := process.lowest(places)
	var chosen Point
	most := -1.0
	for i := range candidates {
		candidate := s.random(random)
		if i%2 == 0 {
			candidate = s.near(trials[at].Point, random)
		}
		mean, deviation := process.At(s.place(candidate))
		if ei := ExpectedImprovement(mean, deviation, best); ei > most {
			chosen, most = candidate, ei
		}
	}
	return chosen, nil
}

// lowest returns the lowest mean of the process at places, and its index.
func (p *Process) lowest(places [][]float64) (value float64, at int) {
	for i, place := range places {
		mean, _ := p.At(place)
		if i == 0 || mean < value {
			value, at = mean, i
		}
	}
	return value, at
}

// Step carries out the next trial. A failed measurement does not count as a trial.
func (s *Search) Step(ctx context.Context, measure func(context.Context, Point) (float64, error)) error {
	point, err := s.next(s.Trials)
	if err != nil {
		return err
	}
	value, err := measure(ctx, point)
	if err != nil {
		return err
	}
	s.Trials = append(s.Trials, Trial{point, value})
	return nil
}

// Best returns the trial with the lowest mean of the Gaussian process. ok is false
// without trials.
func (s *Search) Best() (best Trial, ok bool) {
	if len(s.Trials) == 0 {
		return Trial{}, false
	}
	places := make([][]float64, len(s.Trials))
	values := make([]float64, len(s.Trials))
	for i, t := range s.Trials {
		places[i], values[i] = s.space.place(t.Point), t.Value
	}
	process, err := Fit(places, values)
	if err != nil { // fall back to the measurements
		return slices.MinFunc(s.Trials, func(a, b Trial) int { return cmp.Compare(a.Value, b.Value) }), true
	}
	value, at := process.lowest(places)
	return Trial{s.Trials[at].Point, value}, true
}
