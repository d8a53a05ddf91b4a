package startbench_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/startbench"
)

// want fails unless every mode has a positive sample of each metric.
func want(t *testing.T, r *bench.Result, metrics ...string) {
	t.Helper()
	for _, mode := range slices.Sorted(maps.Keys(r.Modes)) {
		for _, metric := range metrics {
			if samples := r.Modes[mode][metric]; len(samples) != 1 || samples[0] <= 0 {
				t.Errorf("%s, %s: %v", mode, metric, samples)
			}
		}
	}
}

// run measures the steps and checks that the run leaves nothing behind.
func run(t *testing.T, o startbench.Options, steps ...string) *bench.Result {
	t.Helper()
	o.Steps = steps
	check := left(t)
	r, err := startbench.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	check()
	return r
}

// SCON's networks start containers that answer pings, with every option.
func TestScon(t *testing.T) {
	o := options(t, startbench.LauncherDirect, startbench.RuntimeRunc,
		"scon-nopool+admission+tenants=2", "scon-nopool+kind=macvlan", "scon-pool+qos+rules=3", "scon-pool+oci+admission",
		"scon-pool+tenants=2+kind=ptp", "bridge+qos")
	r := run(t, o, startbench.StepStart)
	want(t, r, "total_ms", "ping_ms", "cgroup_ms", "startvm_ms", "cpu_s")
	for mode, values := range r.Modes {
		if oci := strings.Contains(mode, "+oci"); oci == (len(values["add_p50_ms"]) > 0) {
			t.Errorf("%s: ADD took %v", mode, values["add_p50_ms"])
		}
		if pooled := values["pooled"]; strings.HasPrefix(mode, "scon-pool") && (len(pooled) != 1 || pooled[0] != 1) {
			t.Errorf("%s: the pool had a namespace for %v", mode, pooled)
		}
	}
}

// The steps "sustained" (more containers than the pool has) and "quiet" (a pool
// at its minimum) yield samples.
func TestSconSustainedAndQuiet(t *testing.T) {
	startbench.ShortenQuiet(t)
	o := options(t, startbench.LauncherDirect, startbench.RuntimeRunc, "scon-nopool", "scon-pool")
	r := run(t, o, startbench.StepAdd, startbench.StepSustained, startbench.StepQuiet)
	want(t, r, "add1_p50_ms", "add4_p99_ms", "sustained_per_s", "quiet_total_ms")
}

// Containers of the other launcher and runtimes get SCON's networks as well.
func TestSconElsewhere(t *testing.T) {
	for _, tc := range []struct {
		launcher, runtime string
		metric            string
	}{
		{startbench.LauncherCRI, startbench.RuntimeRunc, "runpod_ms"},
		{startbench.LauncherDirect, startbench.RuntimeRunsc, "add_p50_ms"},
		{startbench.LauncherDirect, startbench.RuntimeMicroVM, "add_p50_ms"},
	} {
		t.Run(tc.launcher+" "+tc.runtime, func(t *testing.T) {
			o := options(t, tc.launcher, tc.runtime, "scon-pool")
			o.Count = 1
			r := run(t, o, startbench.StepStart)
			want(t, r, "total_ms", "ping_ms", tc.metric)
			if pooled := r.Modes["scon-pool"]["pooled"]; len(pooled) != 1 || pooled[0] != 1 {
				t.Errorf("the pool had a namespace for %v", pooled)
			}
		})
	}
}

// A search tries limits by both methods and compares the results.
func TestSearch(t *testing.T) {
	o := options(t, startbench.LauncherDirect, startbench.RuntimeRunc, "scon-pool+admission")
	check := left(t)
	found, err := startbench.Search(t.Context(), startbench.SearchOptions{
		Options: o, Trials: 2, Checks: 1, Others: []int{1}, Seed: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	check()
	if len(found.Trials["bayes"]) != 2 || len(found.Trials["random"]) != 2 || len(found.Checks) != 2 || found.Best["bayes"] == nil {
		t.Errorf("found: %+v", found)
	}
	var table strings.Builder
	if err := found.WriteTable(&table); err != nil || !strings.Contains(table.String(), "bayes: add_cni=") {
		t.Errorf("%v:\n%s", err, &table)
	}
}
