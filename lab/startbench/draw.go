package startbench

import (
	"path/filepath"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/figures"
)

// plot is one chart of a result.
type plot struct {
	file, title, y string
	metrics        []string
	stacked        bool
}

// plots, in the order of the corresponding figures of "Understanding Network Startup
// for Secure Containers in Multi-Tenant Clouds".
var plots = []plot{
	{"total.png", "Concurrent start (paper: Fig. 5, 20)", "ms", []string{"total_ms"}, false},
	{"stages.png", "Mean time of a container's stages (Fig. 6, 15)", "ms",
		[]string{"netns_ms", "addcni_ms", "cgroup_ms", "attachif_ms", "startvm_ms", "runpod_ms", "ping_ms"}, true},
	{"rtnl.png", "Waiting for RTNL (Table 3)", "ms", []string{"rtnl_wait_ms"}, false},
	{"spin.png", "Waiting for spin locks", "ms", []string{"spin_wait_ms"}, false},
	{"cpu.png", "Processor time (Fig. 18)", "s", []string{"cpu_s"}, false},
	{"memory.png", "Kernel memory of a container", "KiB", []string{"kernel_kib"}, false},
	{"add.png", "CNI ADD alone, median", "ms", []string{"add1_p50_ms", "add4_p50_ms"}, false},
	{"sustained.png", "Sustained rate", "containers/s", []string{"sustained_per_s"}, false},
	{"quiet.png", "Burst after quiet", "ms", []string{"quiet_total_ms"}, false},
}

// Draw draws the plots of a result into a folder.
func Draw(r *bench.Result, dir string) error {
	var charts []figures.Chart
	for _, p := range plots {
		if c, ok := p.chart(r); ok {
			c.File = filepath.Join(dir, p.file)
			charts = append(charts, c)
		}
	}
	return figures.DrawCharts(charts)
}

// chart returns the chart of a plot; ok is false without samples of its metrics.
func (p plot) chart(r *bench.Result) (c figures.Chart, ok bool) {
	c = figures.Chart{Title: p.title, Y: p.y, Stacked: p.stacked}
	for _, mode := range r.MeasuredModes() {
		for _, metric := range p.metrics {
			if len(r.Modes[mode][metric]) > 0 {
				c.Groups = append(c.Groups, mode)
				break
			}
		}
	}
	for _, metric := range p.metrics {
		s := figures.Series{Name: metric}
		measured := false
		for _, mode := range c.Groups {
			samples := r.Modes[mode][metric]
			q := bench.Interval{} // a missing stage takes no time
			if len(samples) > 0 {
				measured = true
				q = bench.Quartiles(samples)
			}
			s.Values = append(s.Values, q.Median)
			if !p.stacked {
				s.Low, s.High = append(s.Low, q.Low), append(s.High, q.High)
			}
		}
		if measured {
			c.Series = append(c.Series, s)
		}
	}
	return c, len(c.Series) > 0
}
