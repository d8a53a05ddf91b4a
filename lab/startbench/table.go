package startbench

import (
	"cmp"
	"fmt"
	"io"

	"github.com/scon-project/scon/lab/bench"
)

// columns are the metrics of the table.
var columns = []string{
	"total_ms", "add_p50_ms", "add_p99_ms", "cpu_s", "netns_ms", "cgroup_ms", "attachif_ms", "startvm_ms", "runpod_ms", "ping_ms",
	"rtnl_waits", "rtnl_wait_ms", "spin_wait_ms", "pooled", "kernel_kib", "prepared_kib",
	"add1_p50_ms", "add4_p50_ms", "sustained_per_s", "sustained_pooled", "quiet_total_ms", "quiet_pooled",
}

// against are the baseline modes of the ratios.
var against = []string{NetworkNone, NetworkBridge}

// WriteTable writes a row for each mode.
func WriteTable(r *bench.Result, w io.Writer) error {
	modes := r.MeasuredModes()
	var shown []string
	for _, metric := range columns {
		for _, mode := range modes {
			if len(r.Modes[mode][metric]) > 0 {
				shown = append(shown, metric)
				break
			}
		}
	}
	head := []string{"network"}
	for _, metric := range shown {
		head = append(head, metric)
		if metric == "total_ms" {
			for _, other := range against {
				if len(r.Modes[other][metric]) > 0 {
					head = append(head, "/ "+other)
				}
			}
		}
	}
	rows := [][]string{head}
	for _, mode := range modes {
		row := []string{mode}
		for _, metric := range shown {
			row = append(row, cell(r, mode, metric))
			if metric == "total_ms" {
				for _, other := range against {
					if len(r.Modes[other][metric]) > 0 {
						row = append(row, ratio(r, mode, other, metric))
					}
				}
			}
		}
		rows = append(rows, row)
	}
	if err := bench.WriteMarkdown(w, rows); err != nil {
		return err
	}
	return r.WriteFootnote(w)
}

func cell(r *bench.Result, mode, metric string) string {
	samples := r.Modes[mode][metric]
	if len(samples) == 0 {
		return "-"
	}
	middle := bench.Quartiles(samples).Median
	if metric == "total_ms" {
		return fmt.Sprintf("%.0f ±%.0f %%", middle, 100*r.Spread[mode][metric])
	}
	return number(middle)
}

// number formats three significant digits, and large numbers in full.
func number(x float64) string {
	if x >= 100 || x <= -100 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.3g", x)
}

func ratio(r *bench.Result, mode, other, metric string) string {
	i, ok := r.Ratios[mode+"/"+other][metric]
	return cmp.Or(map[bool]string{true: fmt.Sprintf("%.2f [%.2f, %.2f]", i.Median, i.Low, i.High)}[ok], "-")
}
