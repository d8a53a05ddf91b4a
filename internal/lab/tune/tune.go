// Package tune searches the limits of concurrency under which containers start
// soonest (paper: 5.2, Fig. 16, 17 and 19).
//
// The way of a search:
//
//  1. A Space says which whole numbers can be chosen. Limits are compared by
//     their logarithms.
//  2. The first trials are spread over the space.
//  3. Fit makes a Gaussian process of the trials so far.
//  4. The next trial is where the expected improvement is largest.
//
// Random search is the baseline: the same trials without 3 and 4.
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
	Value float64 `json:"value"` // the smaller the better
}

// Search proposes trials.
type Search struct {
	Name  string
	space Space
	// next proposes a point after some trials.
	next   func(trials []Trial) (Point, error)
	Trials []Trial
}

// candidates that the expected improvement is looked at, half of them around
// the best trial.
const candidates = 1000

// Bayes proposes where improvement is expected, after a few spread trials.
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

// Random proposes without looking at what came of earlier trials.
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
	// With noise the best measurement is luck; what the process expects there
	// is not.
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

// lowest of what the process expects at places, and which it is.
func (p *Process) lowest(places [][]float64) (value float64, at int) {
	for i, place := range places {
		mean, _ := p.At(place)
		if i == 0 || mean < value {
			value, at = mean, i
		}
	}
	return value, at
}

// Step carries out the next trial. A trial that could not be measured does not
// count.
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

// Best returns the point that the trials speak for: the lowest that their
// Gaussian process expects at any of them. ok is false without trials.
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
	if err != nil { // the measurements alone
		return slices.MinFunc(s.Trials, func(a, b Trial) int { return cmp.Compare(a.Value, b.Value) }), true
	}
	value, at := process.lowest(places)
	return Trial{s.Trials[at].Point, value}, true
}
