package profile

import (
	"math"
	"slices"
)

// median of the samples, NaN without samples.
func median(samples []float64) float64 { return quantile(0.5, samples) }

// quantile returns the sample of that rank, NaN without samples.
func quantile(p float64, samples []float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[int(p*float64(len(sorted)-1)+0.5)]
}

// middleHalf returns the rows whose sums lie in the middle half, at least one. It
// excludes rows that an interrupt or another process has delayed.
func middleHalf(sums []float64) []int {
	order := make([]int, len(sums))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case sums[a] < sums[b]:
			return -1
		case sums[a] > sums[b]:
			return 1
		}
		return 0
	})
	n := len(order)
	return order[n/4 : n-n/4]
}

// means returns the means of each column over some rows.
func means(rows [][]float64, which []int) []float64 {
	if len(which) == 0 {
		return nil
	}
	mean := make([]float64, len(rows[which[0]]))
	for _, i := range which {
		for k, x := range rows[i] {
			mean[k] += x / float64(len(which))
		}
	}
	return mean
}

// sum adds up the samples.
func sum(samples []float64) (total float64) {
	for _, x := range samples {
		total += x
	}
	return total
}
