package latency

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// finding is a finding of the paper with the corresponding result on this machine.
type finding struct {
	what, paper string
	// here returns "" if the required results were not measured.
	here func(found map[string]*Result) string
}

var findings = []finding{
	{"Fig. 7: median of 1 node at 17.3 kpackets/s", "49 us", func(f map[string]*Result) string {
		return microseconds(f[paced], "n1", "p50_us")
	}},
	{"Fig. 7: at 17.3 kpackets/s most packets take 100 to 1000 us, more with more nodes", "64 nodes the most", func(f map[string]*Result) string {
		return spelled(f[paced], func(mode string) string { return microseconds(f[paced], mode, "p50_us") })
	}},
	{"Fig. 8: the highest latency at 17.3 kpackets/s, 4 and 64 nodes", "5200 us, 60000 us", func(f map[string]*Result) string {
		return join(highest(f[paced], "n4"), highest(f[paced], "n64"))
	}},
	{"Fig. 8: rescheduling interrupts cause the spikes", "yes", func(f map[string]*Result) string {
		return spelled(f[paced], func(mode string) string { return slowestMet(f[paced], mode, Reschedule) })
	}},
	{"Fig. 4: highest rate without loss, 8 nodes and 16", "477 kpackets/s, 173 kpackets/s", func(f map[string]*Result) string {
		return join(lossFree(f[fullCore], "n8"), lossFree(f[fullCore], "n16"))
	}},
	{"Fig. 4: lookups of the dTLB that miss, 64 nodes", "13 %", func(f map[string]*Result) string {
		return tlbMissed(f[fullCore], "n64")
	}},
	{"Fig. 3: highest rate without loss, 64 nodes", "64 kpackets/s, with losses from 17.3 to 50", func(f map[string]*Result) string {
		return lossFree(f[fullCore], "n64")
	}},
	{"Fig. 4: a pinned line carries more than a free one", "yes", func(f map[string]*Result) string {
		return spelled(f[fullCore], func(mode string) string {
			pinned, free := lossFreeRate(f[fullCore], mode), lossFreeRate(f[fullNone], mode)
			if pinned == 0 || free == 0 {
				return ""
			}
			return fmt.Sprintf("%.2f times", pinned/free)
		})
	}},
	{"Fig. 5: the tail is lower on pinned lines, 4 nodes at the highest rate", "678 us instead of 7400", func(f map[string]*Result) string {
		return join(highest(f[fullCore], "n4")+" pinned", highest(f[fullNone], "n4")+" free")
	}},
	{"Fig. 5: median at the highest rate, 8 nodes and 16", "335 us, 1094 us", func(f map[string]*Result) string {
		return join(microseconds(f[fullCore], "n8", "p50_us"), microseconds(f[fullCore], "n16", "p50_us"))
	}},
	{"No line keeps 5G's 500 us for every packet", "none", func(f map[string]*Result) string {
		return spelled(f[paced], func(mode string) string { return highest(f[paced], mode) })
	}},
}

// measuredIn reports whether a result has latencies of a mode.
func measuredIn(r *Result, mode string) bool {
	return r != nil && r.Details[mode] != nil && len(r.Modes[mode]["p50_us"]) > 0
}

// microseconds formats the median of a metric.
func microseconds(r *Result, mode, metric string) string {
	if !measuredIn(r, mode) {
		return ""
	}
	return number(median(r.Modes[mode][metric])) + " us"
}

// highest formats the highest latency of all rounds.
func highest(r *Result, mode string) string {
	if !measuredIn(r, mode) {
		return ""
	}
	return number(slices.Max(r.Modes[mode]["max_us"])) + " us"
}

func lossFreeRate(r *Result, mode string) float64 {
	if r == nil || r.Details[mode] == nil || r.Details[mode].Curve == nil {
		return 0
	}
	return r.Details[mode].Curve.LossFree
}

func lossFree(r *Result, mode string) string {
	rate := lossFreeRate(r, mode)
	if rate == 0 {
		return ""
	}
	return fmt.Sprintf("%s kpackets/s", number(rate/1000))
}

// tlbMissed formats the share of dTLB lookups that missed.
func tlbMissed(r *Result, mode string) string {
	if !measuredIn(r, mode) {
		return ""
	}
	if slices.Contains(r.NotAvailable, dtlbMiss) {
		return errNoCounter.Error()
	}
	percent, ok := r.Details[mode].tlbPercent()
	if !ok {
		return ""
	}
	return fmt.Sprintf("%.2g %%", percent)
}

// slowestMet formats the share of the slowest thousandth of the packets that a
// cause affected.
func slowestMet(r *Result, mode string, c Cause) string {
	if !measuredIn(r, mode) {
		return ""
	}
	d := r.Details[mode]
	slowest := math.Max(1, float64(d.Rounds[d.Worst-1].Arrived)/1000)
	return fmt.Sprintf("%.0f %%", 100*math.Min(1, float64(d.Causes[c.String()].Slowest)/slowest))
}

// spelled formats a value for each mode: "n1 1 us, n64 40 us".
func spelled(r *Result, value func(mode string) string) string {
	if r == nil {
		return ""
	}
	var words []string
	for _, mode := range r.Order {
		if v := value(mode); v != "" {
			words = append(words, mode+" "+v)
		}
	}
	return strings.Join(words, ", ")
}

// join joins the values, or returns "" if one is missing.
func join(values ...string) string {
	if slices.ContainsFunc(values, func(v string) bool { return v == "" || strings.HasPrefix(v, " ") }) {
		return ""
	}
	return strings.Join(values, ", ")
}

// findingsTable compares the paper's findings with ours.
func findingsTable(found map[string]*Result) string {
	rows := [][]string{{"finding of the paper", "there", "here"}}
	for _, f := range findings {
		here := f.here(found)
		if here == "" {
			here = "-"
		}
		rows = append(rows, []string{f.what, f.paper, here})
	}
	return markdown(rows)
}
