package tune

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

// Test functions on [0, 1].
func wave(x float64) float64 { return math.Sin(6*x) + 0.5*x }

func samples(f func(float64) float64, at ...float64) (places [][]float64, values []float64) {
	for _, x := range at {
		places, values = append(places, []float64{x}), append(values, f(x))
	}
	return places, values
}

func TestPosteriorAtSamples(t *testing.T) {
	places, values := samples(wave, 0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1)
	p, err := Fit(places, values)
	if err != nil {
		t.Fatal(err)
	}
	for i, place := range places {
		mean, deviation := p.At(place)
		if math.Abs(mean-values[i]) > 1e-3 || deviation > 0.01 {
			t.Errorf("at %v: %v ± %v, measured %v", place, mean, deviation, values[i])
		}
	}
}

func TestPosteriorBetweenSamples(t *testing.T) {
	places, values := samples(wave, 0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1)
	p, err := Fit(places, values)
	if err != nil {
		t.Fatal(err)
	}
	for x := 0.01; x < 1; x += 0.02 {
		mean, deviation := p.At([]float64{x})
		if off := math.Abs(mean - wave(x)); off > 0.1 {
			t.Errorf("at %.2f: %v ± %v, the function has %v", x, mean, deviation, wave(x))
		}
	}
}

// For a single sample the posterior has a closed form.
func TestPosteriorOfOneSample(t *testing.T) {
	p := &Process{hyper: hyper{length: 0.5, noise: 0.25}, places: [][]float64{{0}}}
	if _, ok := p.condition([]float64{3}); !ok {
		t.Fatal("one sample is singular")
	}
	r := math.Sqrt(5) * 0.2 / 0.5
	k := (1 + r + r*r/3) * math.Exp(-r)
	mean, deviation := p.At([]float64{0.2})
	if want := math.Sqrt(1 - k*k/1.25); math.Abs(deviation-want) > 1e-12 || mean != 3 {
		t.Errorf("%v ± %v, want 3 ± %v", mean, deviation, want)
	}
}

func TestUncertaintyGrowsWithDistance(t *testing.T) {
	places, values := samples(wave, 0, 0.1, 0.2, 0.3)
	p, err := Fit(places, values)
	if err != nil {
		t.Fatal(err)
	}
	last := -1.0
	for _, x := range []float64{0.3, 0.4, 0.6, 0.8, 1} {
		_, deviation := p.At([]float64{x})
		if deviation <= last {
			t.Errorf("at %v the deviation is %v, nearer to the samples %v", x, deviation, last)
		}
		last = deviation
	}
}

func TestNoiseIsFound(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	var places [][]float64
	var values []float64
	for range 60 {
		x := random.Float64()
		places, values = append(places, []float64{x}), append(values, wave(x)+0.3*random.NormFloat64())
	}
	p, err := Fit(places, values)
	if err != nil {
		t.Fatal(err)
	}
	if p.noise < 0.05 {
		t.Errorf("fitted noise %v, want about a sixth of the variance", p.noise)
	}
	for x := 0.1; x < 1; x += 0.1 {
		if mean, _ := p.At([]float64{x}); math.Abs(mean-wave(x)) > 0.3 {
			t.Errorf("at %.1f: %v, without noise %v", x, mean, wave(x))
		}
	}
}

func TestFitRefuses(t *testing.T) {
	if _, err := Fit(nil, nil); err == nil {
		t.Error("a process without samples is accepted")
	}
	if _, err := Fit([][]float64{{1}}, []float64{1, 2}); err == nil {
		t.Error("more measurements than places are accepted")
	}
}

func TestFitOfEqualMeasurements(t *testing.T) {
	places, values := samples(func(float64) float64 { return 5 }, 0, 0.5, 0.5, 1)
	p, err := Fit(places, values)
	if err != nil {
		t.Fatal(err)
	}
	if mean, _ := p.At([]float64{0.7}); math.Abs(mean-5) > 1e-9 {
		t.Errorf("mean %v of measurements that are all 5", mean)
	}
}

func TestExpectedImprovement(t *testing.T) {
	for _, tc := range []struct{ mean, deviation, best, want float64 }{
		{1, 0, 3, 2},                        // certain
		{3, 0, 1, 0},                        // certainly none
		{0, 1, 0, 1 / math.Sqrt(2*math.Pi)}, // half of a normal distribution
		{0, 2, 0, 2 / math.Sqrt(2*math.Pi)}, // twice as wide
		{-10, 1, 0, 10},                     // as good as certain
		{10, 1, 0, 0},                       // as good as none
	} {
		if got := ExpectedImprovement(tc.mean, tc.deviation, tc.best); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("ExpectedImprovement(%v, %v, %v) = %v, want %v", tc.mean, tc.deviation, tc.best, got, tc.want)
		}
	}
}

// promising returns the maximum of the expected improvement on a fine grid.
func TestPromisingIsArgmax(t *testing.T) {
	space := Space{{"limit", 1, 1000}}
	var trials []Trial
	for _, limit := range []int{1, 4, 60, 1000} {
		trials = append(trials, Trial{Point{limit}, math.Abs(math.Log(float64(limit) / 15))})
	}
	got, err := space.promising(trials, rand.New(rand.NewPCG(1, 1)))
	if err != nil {
		t.Fatal(err)
	}
	var places [][]float64
	var values []float64
	for _, trial := range trials {
		places, values = append(places, space.place(trial.Point)), append(values, trial.Value)
	}
	p, err := Fit(places, values)
	if err != nil {
		t.Fatal(err)
	}
	best, _ := p.lowest(places)
	improvement := func(limit int) float64 {
		mean, deviation := p.At(space.place(Point{limit}))
		return ExpectedImprovement(mean, deviation, best)
	}
	most := 0.0
	for limit := 1; limit <= 1000; limit++ {
		most = max(most, improvement(limit))
	}
	if improvement(got[0]) < 0.99*most {
		t.Errorf("expected improvement of limit %d is %v, the maximum %v", got[0], improvement(got[0]), most)
	}
	if got[0] < 5 || got[0] > 59 {
		t.Errorf("limit %d is not between the two lowest trials", got[0])
	}
}

func TestPlacesAndPoints(t *testing.T) {
	space := Space{{"a", 1, 64}, {"b", 3, 3}}
	for a := 1; a <= 64; a++ {
		p := Point{a, 3}
		place := space.place(p)
		if place[0] < 0 || place[0] > 1 || place[1] != 0 {
			t.Fatalf("%v lies at %v", p, place)
		}
		if back := space.point(place); back[0] != a || back[1] != 3 {
			t.Errorf("%v comes back as %v", p, back)
		}
	}
	if one, two := space.place(Point{2, 3})[0], space.place(Point{8, 3})[0]-space.place(Point{4, 3})[0]; math.Abs(one-two) > 1e-12 {
		t.Errorf("1 to 2 is %v, 4 to 8 is %v", one, two)
	}
}

func TestSpreadHitsEveryInterval(t *testing.T) {
	space := Space{{"a", 1, 1 << 20}, {"b", 1, 1 << 20}}
	const n = 9
	for i := range space {
		hit := map[int]bool{}
		for _, p := range space.spread(n, rand.New(rand.NewPCG(3, 3))) {
			hit[min(n-1, int(space.place(p)[i]*n))] = true
		}
		if len(hit) < n-1 { // rounding to integers may move one
			t.Errorf("parameter %d: points in only %d of %d intervals", i, len(hit), n)
		}
	}
}

func TestWrongSpaces(t *testing.T) {
	for _, s := range []Space{nil, {{"a", 0, 5}}, {{"a", 5, 4}}} {
		if _, err := Bayes(s, 1); err == nil {
			t.Errorf("Bayes accepts %v", s)
		}
		if _, err := Random(s, 1); err == nil {
			t.Errorf("Random accepts %v", s)
		}
	}
}

// valley returns a noisy function with its minimum 1 at (8, 4, 16).
func valley(noise *rand.Rand) func(context.Context, Point) (float64, error) {
	return func(_ context.Context, p Point) (float64, error) {
		sum := 1.0
		for i, floor := range []float64{8, 4, 16} {
			off := math.Log2(float64(p[i]) / floor)
			sum += 0.05 * off * off
		}
		return sum + 0.02*noise.NormFloat64(), nil
	}
}

// With an equal number of trials Bayes finds lower points than random search for most
// of 20 seeds.
func TestBayesBeatsRandom(t *testing.T) {
	space := Space{{"a", 1, 128}, {"b", 1, 128}, {"c", 1, 128}}
	const seeds, trials = 10, 25
	exact := func(p Point) float64 {
		v, _ := valley(rand.New(rand.NewPCG(0, 0)))(t.Context(), p)
		return v
	}
	better := 0
	var bayesSum, randomSum float64
	for seed := range uint64(seeds) {
		found := map[string]float64{}
		for _, open := range []func(Space, uint64) (*Search, error){Bayes, Random} {
			s, err := open(space, seed)
			if err != nil {
				t.Fatal(err)
			}
			measure := valley(rand.New(rand.NewPCG(seed, 9)))
			for range trials {
				if err := s.Step(t.Context(), measure); err != nil {
					t.Fatal(err)
				}
			}
			best, _ := s.Best()
			found[s.Name] = exact(best.Point)
		}
		bayesSum, randomSum = bayesSum+found["bayes"], randomSum+found["random"]
		if found["bayes"] < found["random"] {
			better++
		}
	}
	t.Logf("better in %d of %d; mean %.3f against %.3f, the floor is 1", better, seeds, bayesSum/seeds, randomSum/seeds)
	if better < 8 || bayesSum >= randomSum {
		t.Errorf("Bayes is better in %d of %d seeds only: mean %.3f against %.3f", better, seeds, bayesSum/seeds, randomSum/seeds)
	}
}

func TestSameSeedSameTrials(t *testing.T) {
	space := Space{{"a", 1, 50}, {"b", 1, 50}}
	var first []Trial
	for range 2 {
		s, err := Bayes(space, 42)
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			s.Step(t.Context(), func(_ context.Context, p Point) (float64, error) { return float64(p[0] * p[1]), nil })
		}
		if first == nil {
			first = s.Trials
			continue
		}
		for i := range first {
			if first[i].Point[0] != s.Trials[i].Point[0] || first[i].Point[1] != s.Trials[i].Point[1] {
				t.Fatalf("trial %d: %v, then %v", i, first[i].Point, s.Trials[i].Point)
			}
		}
	}
}

func TestTrialThatFailsDoesNotCount(t *testing.T) {
	s, err := Random(Space{{"a", 1, 9}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	want := errors.New("no start")
	if err := s.Step(t.Context(), func(context.Context, Point) (float64, error) { return 0, want }); !errors.Is(err, want) {
		t.Errorf("Step = %v", err)
	}
	if _, ok := s.Best(); ok || len(s.Trials) != 0 {
		t.Errorf("trials: %v", s.Trials)
	}
}
