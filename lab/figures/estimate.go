package figures

import (
	"fmt"
	"math"

	"github.com/scon-project/scon/lab/bench"
)

// estimate computes the number of a claim from the results. ok is false if it was
// not measured.
type estimate func(results) (i bench.Interval, ok bool)

// ratio returns the estimate of the ratio of medians of a pair of modes: of one
// metric with its interval, or the mean of several without one.
func ratio(source, pair string, metrics ...string) estimate {
	return func(found results) (bench.Interval, bool) {
		if found.experiments[source] == nil {
			return bench.Interval{}, false
		}
		return mean(found.experiments[source].Ratios[pair], metrics)
	}
}

// gap returns the estimate of the share of the difference between container and
// native that express removes.
func gap(source string, metrics ...string) estimate {
	return func(found results) (bench.Interval, bool) {
		if found.experiments[source] == nil {
			return bench.Interval{}, false
		}
		return mean(found.experiments[source].GapClosed, metrics)
	}
}

// growth returns the estimate of the ratio of the medians of two metrics in one
// mode.
func growth(source, mode, to, from string) estimate {
	return func(found results) (bench.Interval, bool) {
		r := found.experiments[source]
		if r == nil || !measured(r, []string{mode}, to) || !measured(r, []string{mode}, from) {
			return bench.Interval{}, false
		}
		return quotient(bench.Quartiles(r.Modes[mode][to]).Median, bench.Quartiles(r.Modes[mode][from]).Median)
	}
}

// mean averages the available estimates. The mean of several has no interval.
func mean(all map[string]bench.Interval, metrics []string) (bench.Interval, bool) {
	var found []bench.Interval
	for _, metric := range metrics {
		if i, ok := all[metric]; ok {
			found = append(found, i)
		}
	}
	switch len(found) {
	case 0:
		return bench.Interval{}, false
	case 1:
		return found[0], true
	}
	var total float64
	for _, i := range found {
		total += i.Median
	}
	return bench.Interval{Median: total / float64(len(found)), Low: math.NaN(), High: math.NaN()}, true
}

// format formats an estimate, with its interval if it has one.
func format(i bench.Interval) string {
	if math.IsNaN(i.Low) {
		return fmt.Sprintf("%.2f", i.Median)
	}
	return fmt.Sprintf("%.2f [%.2f, %.2f]", i.Median, i.Low, i.High)
}
