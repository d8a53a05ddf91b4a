package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/metricstest"
)

// A time is in the first bucket that has room for it, and in all above.
func TestTimes(t *testing.T) {
	f := &Family{"scon_wait_seconds", "histogram", "Waiting.", []string{"stage"}}
	var times Times
	for _, d := range []time.Duration{0, 100 * time.Microsecond, 101 * time.Microsecond, 30 * time.Second, time.Minute} {
		times.Add(d)
	}
	p := Page{}
	p.PutTimes(f, times, "a\"\x1b\nb")
	for _, want := range []string{
		`scon_wait_seconds_bucket{stage="a\"??b",le="0.0001"} 2`, `scon_wait_seconds_bucket{stage="a\"??b",le="0.00025"} 3`,
		`scon_wait_seconds_bucket{stage="a\"??b",le="10.0"} 3`, `scon_wait_seconds_bucket{stage="a\"??b",le="30.0"} 4`,
		`scon_wait_seconds_bucket{stage="a\"??b",le="+Inf"} 5`,
		`scon_wait_seconds_sum{stage="a\"??b"} 90.000201`, `scon_wait_seconds_count{stage="a\"??b"} 5`,
	} {
		if !strings.Contains(p[f][0]+"\n", want+"\n") {
			t.Errorf("no line %s in\n%s", want, p[f][0])
		}
	}
}

// OpenMetrics differs in the names of families of counters and in its end.
func TestOpenMetrics(t *testing.T) {
	const text = "# HELP a_total Things_total per name_total.\n# TYPE a_total counter\na_total{b=\"# TYPE c_total \"} 1\n" +
		"# HELP d Other.\n# TYPE d gauge\nd 2\n"
	const want = "# HELP a Things_total per name_total.\n# TYPE a counter\na_total{b=\"# TYPE c_total \"} 1\n" +
		"# HELP d Other.\n# TYPE d gauge\nd 2\n# EOF\n"
	if got := OpenMetrics(text); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := OpenMetrics(""); got != "# EOF\n" {
		t.Errorf("nothing becomes %q", got)
	}
}

// All counters end in _total: without it OpenMetrics has no name for their samples.
func TestCountersEndInTotal(t *testing.T) {
	for _, f := range families {
		if (f.kind == "counter") != strings.HasSuffix(f.name, "_total") {
			t.Errorf("%s is a %s", f.name, f.kind)
		}
	}
}

// Prometheus' own parser reads a histogram, and its lint has no complaint.
func TestHistogramIsRead(t *testing.T) {
	f := &Family{"scon_wait_seconds", "histogram", "Waiting.", nil}
	families = append(families, f)
	t.Cleanup(func() { families = families[:len(families)-1] })
	p := Page{}
	p.PutTimes(f, Times{})
	got := metricstest.Parse(t, p.Write)
	if n := len(got["scon_wait_seconds"].Metric[0].Histogram.Bucket); n != len(bounds)+1 {
		t.Errorf("%d buckets", n)
	}
}
