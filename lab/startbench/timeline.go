package startbench

import (
	"encoding/json"
	"math"

	"github.com/scon-project/scon/lab/bench"
)

// Timeline is a container's start: name, begin and end of each stage, in
// milliseconds since the start of the burst.
type Timeline []TimelineStage

// TimelineStage is a stage of a Timeline.
type TimelineStage struct {
	Name  string  `json:"name"`
	Begin float64 `json:"begin_ms"`
	End   float64 `json:"end_ms"`
}

func timelines(r Report) []Timeline {
	lines := make([]Timeline, len(r.Containers))
	for i, c := range r.Containers {
		for _, s := range c.Stages {
			lines[i] = append(lines[i], TimelineStage{s.Name, round(milliseconds(s.Begin - r.Begun)), round(milliseconds(s.End - r.Begun))})
		}
	}
	return lines
}

// round rounds to microseconds.
func round(ms float64) float64 { return math.Round(ms*1e3) / 1e3 }

// keepTypical keeps the timelines of one start of each mode: the one nearest to the
// median.
func keepTypical(r *bench.Result) {
	best := map[string]int{}
	distance := func(s bench.Sample) float64 {
		return math.Abs(s.Values["total_ms"] - bench.Quartiles(r.Modes[s.Mode]["total_ms"]).Median)
	}
	for i, s := range r.Samples {
		if s.Detail == nil {
			continue
		}
		if at, ok := best[s.Mode]; !ok || distance(s) < distance(r.Samples[at]) {
			best[s.Mode] = i
		}
	}
	for i, s := range r.Samples {
		if s.Detail != nil && best[s.Mode] != i {
			r.Samples[i].Detail = nil
		}
	}
}

// typical returns the timelines that keepTypical kept of a mode.
func typical(r *bench.Result, mode string) (lines []Timeline, err error) {
	for _, s := range r.Samples {
		if s.Mode == mode && s.Detail != nil {
			return lines, json.Unmarshal(s.Detail, &lines)
		}
	}
	return nil, nil
}
