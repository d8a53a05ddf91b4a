package metrics

import (
	"strconv"
	"strings"
	"time"
)

// bounds are the upper bounds of the buckets of all histograms: from what one netlink
// request takes to what thousands of containers that start at once wait.
var bounds = [...]time.Duration{
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second,
}

// Times counts times by their length. The zero value has none. It is not safe for use by
// several goroutines.
type Times struct {
	Count   uint64
	Sum     time.Duration
	buckets [len(bounds)]uint64 // those that are longer are only in Count
}

// Add counts a time.
func (t *Times) Add(d time.Duration) {
	t.Count++
	t.Sum += d
	for i, bound := range bounds {
		if d <= bound {
			t.buckets[i]++
			return
		}
	}
}

// Histogram defines a family of histograms of times in seconds.
func Histogram(name, help string, labels ...string) *Family {
	return newFamily(Family{name, "histogram", help, labels})
}

// PutTimes adds a histogram, with a value for each of the family's labels.
func (p Page) PutTimes(f *Family, t Times, labels ...string) {
	var lines []string
	below := uint64(0)
	for i, bound := range bounds {
		below += t.buckets[i]
		lines = append(lines, f.sample("_bucket", float64(below), labels, "le", bucketBound(bound)))
	}
	lines = append(lines,
		f.sample("_bucket", float64(t.Count), labels, "le", "+Inf"),
		f.sample("_sum", t.Sum.Seconds(), labels),
		f.sample("_count", float64(t.Count), labels))
	p[f] = append(p[f], strings.Join(lines, "\n"))
}

// bucketBound formats a bound as OpenMetrics demands.
func bucketBound(d time.Duration) string {
	text := strconv.FormatFloat(d.Seconds(), 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}
