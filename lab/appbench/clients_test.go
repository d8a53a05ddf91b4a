package appbench

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	const head = "Running 2s test @ http://192.0.2.2:8080/small\n  1 threads and 16 connections\n"
	r, err := parse(head + "figures 4000 2000000 158 4281 0\n")
	if want := (report{perSecond: 2000, p50: 158, p99: 4281}); err != nil || r != want {
		t.Errorf("%+v, %v, want %+v", r, err, want)
	}
	for _, out := range []string{
		head,
		head + "figures 4000 2000000 158 4281 3\n", // failed requests
		head + "figures 0 2000000 0 0 0\n",         // no answers
	} {
		if r, err := parse(out); err == nil {
			t.Errorf("%q is read as %+v", out, r)
		}
	}
}

func TestParseAB(t *testing.T) {
	const (
		out   = "Complete requests:      9143\nFailed requests:        0\nRequests per second:    9142.94 [#/sec] (mean)\n"
		times = "Percentage served,Time in ms\n0,0.301\n50,1.602\n99,2.514\n100,9.1\n"
	)
	r, err := parseAB(out, times)
	if want := (report{perSecond: 9142.94, p50: 1602, p99: 2514}); err != nil || r != want {
		t.Errorf("%+v, %v, want %+v", r, err, want)
	}
	for _, bad := range [][2]string{
		{"", times},
		{out, "Percentage served,Time in ms\n"},
		{strings.Replace(out, "Failed requests:        0", "Failed requests:        12", 1), times},
		{out + "Non-2xx responses:      9143\n", times},
	} {
		if r, err := parseAB(bad[0], bad[1]); err == nil {
			t.Errorf("%q and %q are read as %+v", bad[0], bad[1], r)
		}
	}
}
