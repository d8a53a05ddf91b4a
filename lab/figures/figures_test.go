package figures

import (
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/profile"
)

// found returns a result of the tcp source: container has half the rate of native,
// express lies between them.
func found(t *testing.T) results {
	t.Helper()
	of := func(mbps, softirq float64) map[string][]float64 {
		return map[string][]float64{
			"tcp_64_mbps":         {mbps, mbps, mbps},
			"tcp_64_softirq_pct":  {softirq, softirq - 1, softirq + 1},
			"tcp_64_process_pct":  {100 - softirq},
			"tcp_1024_mbps":       {2 * mbps},
			"tcp_512_softirq_pct": {7},
		}
	}
	return results{experiments: map[string]*bench.Result{"tcp": {
		Experiment: "tcp",
		Modes: map[string]map[string][]float64{
			"native": of(100, 20), "container": of(50, 40), "express": of(75, 30),
		},
		Ratios: map[string]map[string]bench.Interval{
			containerToNative: {
				"tcp_64_mbps":   {Median: 0.5, Low: 0.4, High: 0.6},
				"tcp_1024_mbps": {Median: 0.42, Low: 0.4, High: 0.6},
			},
			expressToContainer: {"tcp_64_mbps": {Median: 1.5, Low: 1.4, High: 1.6}},
		},
		GapClosed: map[string]bench.Interval{"tcp_64_mbps": {Median: 0.5, Low: 0.4, High: 0.6}},
	}}}
}

func TestEveryFigureNamesWhatIsMeasured(t *testing.T) {
	metrics := map[string]bool{}
	for _, s := range sources {
		for _, step := range s.experiment(Full).Steps {
			for _, m := range step.Metrics {
				metrics[s.name+" "+m.Name] = true
			}
		}
	}
	for _, f := range figures {
		if len(f.sources) == 0 || len(f.panels) == 0 && f.sources[0] != profileSource || len(f.claims) == 0 || f.how == "" {
			t.Errorf("Fig. %s lacks sources, panels, claims or how it is obtained", f.id)
		}
		for _, p := range f.panels {
			if !slices.Contains(f.sources, p.source) {
				t.Errorf("Fig. %s is of %q, which is not measured for it", p.id, p.source)
			}
			for _, g := range p.groups {
				for _, l := range slices.Concat(p.layers, []group{{}}) {
					if len(p.layers) > 0 && l == (group{}) {
						continue
					}
					if !metrics[p.source+" "+g.metric+l.metric] {
						t.Errorf("Fig. %s shows %s of %s, which is not measured", p.id, g.metric+l.metric, p.source)
					}
				}
			}
		}
	}
}

func TestQuickMeasuresAllFigures(t *testing.T) {
	for _, s := range sources {
		if len(s.experiment(Quick).Steps) == 0 {
			t.Errorf("%s has no steps in Quick", s.name)
		}
	}
}

func TestSourcesOf(t *testing.T) {
	names := func(ids ...string) (names []string) {
		chosen, _, err := sourcesOf(ids)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range chosen {
			names = append(names, s.name)
		}
		return names
	}
	if got := names("12", "2"); !slices.Equal(got, []string{"tcp", "roundtrips"}) {
		t.Errorf("Fig. 2 and 12 need %v", got)
	}
	if got, profile, err := sourcesOf([]string{"13"}); len(got) != 0 || !profile || err != nil {
		t.Errorf("Fig. 13 needs %v, a profile %v, error %v", got, profile, err)
	}
	if got := names(); len(got) != len(sources) {
		t.Errorf("all figures need %v", got)
	}
	if _, _, err := sourcesOf([]string{"99"}); err == nil || !strings.Contains(err.Error(), `"99"`) {
		t.Errorf("error %v, want one about figure 99", err)
	}
}

func TestEstimates(t *testing.T) {
	results := found(t)
	for _, tc := range []struct {
		name string
		estimate
		want string
	}{
		{"one with its interval", ratio("tcp", containerToNative, "tcp_64_mbps"), "0.50 [0.40, 0.60]"},
		{"mean of those that are there", ratio("tcp", containerToNative, every("tcp_%d_mbps")...), "0.46"},
		{"gap", gap("tcp", "tcp_64_mbps"), "0.50 [0.40, 0.60]"},
		{"growth", growth("tcp", "express", "tcp_1024_mbps", "tcp_64_mbps"), "2.00"},
	} {
		i, ok := tc.estimate(results)
		if got := format(i); !ok || got != tc.want {
			t.Errorf("%s: %q, %v; want %q", tc.name, got, ok, tc.want)
		}
	}
	for name, e := range map[string]estimate{
		"source": ratio("udp", containerToNative, "udp_64_mbps"),
		"pair":   ratio("tcp", "a/b", "tcp_64_mbps"),
		"metric": gap("tcp", "tcp_32_mbps"),
		"sample": growth("tcp", "express", "tcp_32_mbps", "tcp_64_mbps"),
	} {
		if i, ok := e(results); ok {
			t.Errorf("no such %s: estimate %v", name, i)
		}
	}
}

func TestDifferences(t *testing.T) {
	exact := func(x float64) bench.Interval { return bench.Interval{Median: x, Low: math.NaN(), High: math.NaN()} }
	c := claim{paper: 2, why: less("of the weather.")}
	for want, ours := range map[string]bench.Interval{
		"As in the paper.": exact(1.81),
		"No difference found: the paper's is within our interval.":                        {Median: 1.5, Low: 1, High: 2.5},
		"Less than in the paper: of the weather.":                                         {Median: 1.5, Low: 1.4, High: 1.6},
		"More than in the paper, against what we expect; mind the spread of the samples.": exact(3),
	} {
		if got := c.difference(ours); got != want {
			t.Errorf("%v: %q, want %q", ours, got, want)
		}
	}
}

func TestGroupedChart(t *testing.T) {
	p := panel{id: "11b", title: "throughput", source: "tcp", groups: bySize("tcp_%d_mbps")}
	got, ok := p.chart(found(t))
	want := Chart{Title: "Fig. 11b: throughput", Groups: []string{"64", "1024"}, Series: []Series{
		{Name: "native", Values: []float64{100, 200}, Low: []float64{100, 200}, High: []float64{100, 200}},
		{Name: "container", Values: []float64{50, 100}, Low: []float64{50, 100}, High: []float64{50, 100}},
		{Name: "express", Values: []float64{75, 150}, Low: []float64{75, 150}, High: []float64{75, 150}},
	}}
	if diff := cmp.Diff(want, got); !ok || diff != "" {
		t.Errorf("chart %v: %s", ok, diff)
	}
}

func TestStackedChart(t *testing.T) {
	p := panel{id: "2a", source: "tcp", modes: nativeAndContainer, groups: bySize("tcp_%d"), layers: cpuLayers}
	got, _ := p.chart(found(t))
	// 512 bytes have a sample of one layer only.
	want := Chart{Title: "Fig. 2a: ", Stacked: true, Groups: []string{"64n", "64c"}, Series: []Series{
		{Name: "softirq", Values: []float64{20, 40}},
		{Name: "application", Values: []float64{80, 60}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("chart: %s", diff)
	}
	if _, ok := p.chart(results{}); ok {
		t.Error("there is a chart without results")
	}
}

func TestReportShowsPaperBesideOurs(t *testing.T) {
	var report strings.Builder
	if err := writeReport(&report, found(t)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| throughput, container/native, 1 KB | 0.41 | 0.42 [0.40, 0.60] | As in the paper. |",
		"![Fig. 11b: throughput, TCP](figures/fig11b.png)",
		"| throughput, gap closed, 512 B | 0.47 | - | Not measured in this run. |",
		"Not measured yet: `scon bench figures 8`.",
		"not available on this kernel",
		"### [tcp](tcp.json)",
	} {
		if !strings.Contains(report.String(), want) {
			t.Errorf("the report lacks %q", want)
		}
	}
	if strings.Contains(report.String(), "fig2c.png") {
		t.Error("the report shows a plot of latencies, which were not measured")
	}
}

// The committed report is the one drawn from the committed results.
func TestCommittedReportIsDrawnFromResults(t *testing.T) {
	const dir = "../results"
	committed, err := os.ReadFile(dir + "/figures.md")
	if err != nil {
		t.Skip("no figures are committed: scon bench figures")
	}
	found, err := readResults(dir)
	if err != nil {
		t.Fatal(err)
	}
	var report strings.Builder
	if err := writeReport(&report, found); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(report.String(), string(committed)); diff != "" {
		t.Errorf("lab/results/figures.md is not what \"scon bench figures --draw --dir lab/results\" writes:\n%s", diff)
	}
}

func TestLayersOfAProfile(t *testing.T) {
	layers := func(second float64) []profile.Layer {
		return []profile.Layer{
			{Name: "wire: transmit", NS: 10},
			{Name: "2nd IP layer: forward", NS: second},
			{Name: "Netfilter forward: ip filter FORWARD", Hook: "forward", NS: second},
		}
	}
	found := results{profile: &profile.Profile{Paths: []profile.Path{
		{Name: "native", CallNS: 100, Layers: append(layers(0), profile.Layer{Name: "Netfilter output", Hook: "output", NS: 10})},
		{Name: "container", CallNS: 190, Layers: append(layers(25), profile.Layer{Name: "bridge", NS: 10})},
	}}}
	if i, ok := callRatio(bench.Container, bench.Native)(found); !ok || i.Median != 1.9 {
		t.Errorf("call: %v, %v; want 1.9", i, ok)
	}
	// 50 - 10 of the second layer, of 60 - 10 more in total.
	if i, ok := secondLayerShare(found); !ok || i.Median != 0.8 {
		t.Errorf("second IP layer: %v, %v; want 0.8", i, ok)
	}
	if i, ok := callRatio(bench.Express, bench.Native)(found); ok {
		t.Errorf("express, which was not measured: %v", i)
	}
	if i, ok := secondLayerShare(results{}); ok {
		t.Errorf("share of an empty profile: %v", i)
	}
}
