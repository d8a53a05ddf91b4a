package figures

import (
	"path/filepath"

	"github.com/scon-project/scon/lab/bench"
)

// DrawScale draws the time of a packet over the number of connections, a line for each
// mode of a result of bench.Scale, into a folder.
func DrawScale(r *bench.Result, connections []int, dir string) error {
	p := Plot{File: filepath.Join(dir, "scale.png"), Title: "Connections in random order", X: "connections", Y: "ns per packet", LogX: true}
	for _, mode := range r.MeasuredModes() {
		line := Line{Name: mode}
		for _, n := range connections {
			if samples := r.Modes[mode][bench.ScaleStep(n)+"_packet_ns"]; len(samples) > 0 {
				line.X = append(line.X, float64(n))
				line.Y = append(line.Y, bench.Quartiles(samples).Median)
			}
		}
		p.Lines = append(p.Lines, line)
	}
	return DrawPlots([]Plot{p})
}
