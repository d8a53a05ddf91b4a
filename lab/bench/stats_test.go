package bench

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestMedianAndSpread(t *testing.T) {
	for _, c := range []struct {
		name           string
		samples        []float64
		median, spread float64
	}{
		{"one", []float64{7}, 7, 0},
		{"odd, unsorted", []float64{30, 10, 20}, 20, 0.5},
		{"even", []float64{1, 2, 3, 4}, 2.5, 0.6},
		{"an outlier moves neither", []float64{10, 10, 10, 10, 1e9}, 10, 0},
	} {
		if got := median(c.samples); got != c.median {
			t.Errorf("%s: median %v, want %v", c.name, got, c.median)
		}
		if got := spread(c.samples); math.Abs(got-c.spread) > 1e-9 {
			t.Errorf("%s: spread %v, want %v", c.name, got, c.spread)
		}
	}
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("median of nothing: %v, want NaN", got)
	}
}

func TestMedianLeavesTheOrder(t *testing.T) {
	samples := []float64{3, 1, 2}
	median(samples)
	if samples[0] != 3 || samples[1] != 1 || samples[2] != 2 {
		t.Errorf("the samples were sorted: %v", samples)
	}
}

// noisy returns samples around a centre, with a relative width of 2*noise.
func noisy(seed uint64, n int, centre, noise float64) []float64 {
	random := rand.New(rand.NewPCG(seed, 0))
	samples := make([]float64, n)
	for i := range samples {
		samples[i] = centre * (1 + noise*(2*random.Float64()-1))
	}
	return samples
}

func TestBootstrapIsDeterministic(t *testing.T) {
	a, b := noisy(1, 9, 100, 0.1), noisy(2, 9, 50, 0.1)
	if x, y := bootstrap(ratioOfMedians, a, b), bootstrap(ratioOfMedians, a, b); x != y {
		t.Errorf("two intervals of the same samples differ: %v and %v", x, y)
	}
}

func TestBootstrapOfEqualSamplesIsAPoint(t *testing.T) {
	got := bootstrap(ratioOfMedians, []float64{6, 6, 6}, []float64{3, 3})
	if want := (Interval{2, 2, 2}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// About 95 % of many experiments with a known ratio must have it in their interval.
// Fewer would mean that the intervals are too narrow.
func TestBootstrapHoldsTheTrueRatio(t *testing.T) {
	const trials = 200
	held := 0
	for trial := range uint64(trials) {
		i := bootstrap(ratioOfMedians, noisy(2*trial, 15, 200, 0.2), noisy(2*trial+1, 15, 100, 0.2))
		if i.Low > i.Median || i.Median > i.High {
			t.Fatalf("bounds out of order: %v", i)
		}
		if i.Low <= 2 && 2 <= i.High {
			held++
		}
	}
	if held < trials*88/100 {
		t.Errorf("only %d of %d intervals hold the true ratio", held, trials)
	}
}

func TestBootstrapNarrowsWithLessNoise(t *testing.T) {
	width := func(noise float64) float64 {
		i := bootstrap(ratioOfMedians, noisy(1, 11, 100, noise), noisy(2, 11, 100, noise))
		return i.High - i.Low
	}
	if wide, narrow := width(0.2), width(0.02); narrow >= wide/2 {
		t.Errorf("a tenth of the noise leaves an interval of %v instead of %v", narrow, wide)
	}
}

func TestGapClosed(t *testing.T) {
	native, container := []float64{100}, []float64{60}
	for express, want := range map[float64]float64{60: 0, 90: 0.75, 100: 1, 50: -0.25} {
		if got := gapClosed([]float64{express}, container, native); got != want {
			t.Errorf("express %v between %v and %v: got %v, want %v", express, container, native, got, want)
		}
	}
	if i := bootstrap(gapClosed, []float64{1}, []float64{5}, []float64{5}); i.finite() {
		t.Errorf("no gap, but %v of it closed", i)
	}
}
