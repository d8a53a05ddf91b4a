package bench

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Interval is an estimate with its 95 % confidence bounds.
type Interval struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// resamples of a bootstrap; more change the bounds by less than their spread.
const resamples = 2000

// median of the samples: the mean of the middle two if their number is even, NaN
// without samples.
func median(samples []float64) float64 { return quantile(0.5, samples) }

// spread is the interquartile range divided by the median.
func spread(samples []float64) float64 {
	return (quantile(0.75, samples) - quantile(0.25, samples)) / median(samples)
}

// quantile interpolates between the neighbours of rank p*(n-1); NaN without
// samples.
func quantile(p float64, samples []float64) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	n := len(sorted)
	if n == 0 {
		return math.NaN()
	}
	at := p * float64(n-1)
	below := int(at)
	if below == n-1 {
		return sorted[below]
	}
	return sorted[below] + (at-float64(below))*(sorted[below+1]-sorted[below])
}

// bootstrap estimates a statistic of several sets of samples, each with at least
// one sample. Each resample draws from every set as many samples as it has, with
// replacement. The same samples always give the same interval.
func bootstrap(statistic func(sets ...[]float64) float64, sets ...[]float64) Interval {
	random := rand.New(rand.NewPCG(1, uint64(len(sets))))
	drawn := make([][]float64, len(sets))
	for i, set := range sets {
		drawn[i] = make([]float64, len(set))
	}
	estimates := make([]float64, resamples)
	for i := range estimates {
		for j, set := range sets {
			for k := range set {
				drawn[j][k] = set[random.IntN(len(set))]
			}
		}
		estimates[i] = statistic(drawn...)
	}
	return Interval{
		Median: statistic(sets...),
		Low:    quantile(0.025, estimates),
		High:   quantile(0.975, estimates),
	}
}

// finite reports whether all numbers of the interval are finite.
func (i Interval) finite() bool {
	sum := i.Median + i.Low + i.High
	return !math.IsNaN(sum) && !math.IsInf(sum, 0)
}

// ratioOfMedians is the first set's median divided by the second's.
func ratioOfMedians(sets ...[]float64) float64 {
	return median(sets[0]) / median(sets[1])
}

// gapClosed is the share of the difference between the second set's median and the
// third's that the first set's removes: 0 none, 1 all.
func gapClosed(sets ...[]float64) float64 {
	from, to := median(sets[1]), median(sets[2])
	return (median(sets[0]) - from) / (to - from)
}

// RatioOfMedians estimates the ratio of the medians of two sets of samples.
func RatioOfMedians(a, b []float64) Interval { return bootstrap(ratioOfMedians, a, b) }

// Quantile interpolates between the neighbours of rank p*(n-1); NaN without
// samples.
func Quantile(p float64, samples []float64) float64 { return quantile(p, samples) }

// Quartiles returns the median of samples, with the quartiles as Low and High; NaN
// without samples.
func Quartiles(samples []float64) Interval {
	return Interval{
		Median: median(samples),
		Low:    quantile(0.25, samples),
		High:   quantile(0.75, samples),
	}
}
