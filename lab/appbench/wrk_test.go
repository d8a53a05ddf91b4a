package appbench

import "testing"

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
