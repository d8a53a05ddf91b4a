package latency

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"

	"gonum.org/v1/gonum/stat"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/output"
)

// Result is the outcome of a measurement, and the content of its file: the schema
// of the other experiments, with details of the latencies.
type Result struct {
	*bench.Result
	// Line is the kind of the modes' nodes, one of the kinds below.
	Line       string  `json:"line"`
	Pin        Pin     `json:"pin"`
	FrameBytes int     `json:"frame_bytes"`
	DurationS  float64 `json:"duration_s"`
	// Order of the modes, and details of each.
	Order   []string         `json:"order"`
	Details map[string]*Mode `json:"details"`
	TapCost TapCost          `json:"tap_cost"`
	// NotAvailable lists causes of delay that this machine does not report.
	NotAvailable []string `json:"causes_not_available"`
	Notes        []string `json:"notes"`
}

// Kinds of lines.
const (
	Routed   = "routed"   // nodes that only route
	Gateways = "gateways" // nodes with bridge, NAT and Docker's rules
	OfFile   = "topology" // nodes of a topology file
)

// Mode holds the details of a mode.
type Mode struct {
	Nodes  int     `json:"nodes"` // number of forwarding nodes
	Rounds []Round `json:"rounds"`
	// Worst is the round with the highest latency. Causes and Distribution are
	// those of that round, as in the paper.
	Worst        int                     `json:"worst_round"`
	Causes       map[string]CauseSummary `json:"causes"`
	Distribution []Percentile            `json:"distribution"`
	// Curve of losses, if the rate was raised.
	Curve *Curve `json:"curve,omitempty"`
	// ExpressShare of the packets of the worst round; 0 without SCON.
	ExpressShare float64 `json:"express_share,omitempty"`
}

// Round counts the packets of a round.
type Round struct {
	Round    int    `json:"round"` // from 1
	Due      uint32 `json:"due"`
	Arrived  int    `json:"arrived"`
	Lost     uint32 `json:"lost"`
	Skipped  uint32 `json:"skipped"`
	Untapped uint32 `json:"untapped"`
	// Overtaken counts packets that a later one overtook.
	Overtaken uint32 `json:"overtaken"`
	// BehindUS is the generator's longest delay behind its schedule, CallUS the
	// mean duration of its calls.
	BehindUS float64 `json:"behind_us"`
	CallUS   float64 `json:"call_us"`
	// TLB of the line's CPUs; nil if there is no counter.
	TLB *TLB `json:"tlb,omitempty"`
}

// Percentile is a point of a distribution: a share P of the packets took at most
// US.
type Percentile struct {
	P  float64 `json:"p"`
	US float64 `json:"us"`
}

// distribution has ten points for each ninth of the percentiles: 0 to 90 %, 90 to
// 99 % and so on, as in HDR diagrams.
func distribution(s Samples) (d []Percentile) {
	all := s.sorted(latencyNS)
	if len(all) == 0 {
		return nil
	}
	for i := 0; ; i++ {
		rest := math.Pow(10, -float64(i)/10)
		if rest*float64(len(all)) < 1 {
			break
		}
		d = append(d, Percentile{1 - rest, quantile(all, 1-rest) / 1000})
	}
	return append(d, Percentile{1, quantile(all, 1) / 1000})
}

// add adds a round's samples and reports whether they are the worst so far.
func (r *Result) add(mode string, round int, s Samples, a answer, tlb *TLB) (worst bool) {
	m := r.Details[mode]
	values := s.values()
	m.Rounds = append(m.Rounds, Round{
		Round: round, Due: s.Schedule.Packets, Arrived: len(s.Packets), Lost: s.Lost, Skipped: s.Skipped,
		Untapped: s.Untapped, Overtaken: s.Overtaken, BehindUS: float64(a.Sent.Behind) / 1000, CallUS: a.CallNS / 1000,
		TLB: tlb,
	})
	highest := math.Inf(-1)
	for _, max := range r.Modes[mode]["max_us"] {
		highest = math.Max(highest, max)
	}
	if r.Modes[mode] == nil {
		r.Modes[mode] = map[string][]float64{}
	}
	for metric, value := range values {
		r.Modes[mode][metric] = append(r.Modes[mode][metric], value)
	}
	r.Samples = append(r.Samples, bench.Sample{Round: round, Mode: mode, Step: "latency", Values: values, Lost: uint64(s.Lost)})
	if len(s.Packets) == 0 || values["max_us"] <= highest {
		return false
	}
	m.Worst, m.Causes, m.Distribution = round, summarizeCauses(s), distribution(s)
	return true
}

// summarize computes ratios and spreads from the samples.
func (r *Result) summarize() {
	r.Spread = map[string]map[string]float64{}
	for mode, metrics := range r.Modes {
		r.Spread[mode] = map[string]float64{}
		for metric, samples := range metrics {
			if q := bench.Quartiles(samples); q.Median != 0 {
				r.Spread[mode][metric] = (q.High - q.Low) / q.Median
			}
		}
	}
}

// PerNode returns what one more node adds to the median latency, in microseconds:
// the slope over the modes whose names have the suffix, or over those without one
// for "". It needs two such modes at the same rate; otherwise ok is false.
func (r *Result) PerNode(suffix string) (us float64, ok bool) {
	var nodes, p50 []float64
	for _, mode := range r.Order {
		length := r.Details[mode].Nodes
		if mode != modeName(length)+suffix || len(r.Modes[mode]["p50_us"]) == 0 {
			continue
		}
		if r.Details[mode].Curve != nil {
			return 0, false // each mode has a rate of its own
		}
		nodes = append(nodes, float64(length))
		p50 = append(p50, bench.Quartiles(r.Modes[mode]["p50_us"]).Median)
	}
	if len(nodes) < 2 {
		return 0, false
	}
	_, slope := stat.LinearRegression(nodes, p50, nil, false)
	return slope, true
}

// modeName returns the name of a line.
func modeName(nodes int) string { return fmt.Sprintf("n%d", nodes) }

// expressSuffix ends the names of modes with SCON.
const expressSuffix = "_express"

// WriteFile writes the result as JSON.
func (r *Result) WriteFile(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return output.Write(path, append(text, '\n'))
}

// ReadFile reads a file that WriteFile wrote.
func ReadFile(path string) (*Result, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read result: %w", err)
	}
	r, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("read result %s: %w", path, err)
	}
	return r, nil
}

// Parse reads a result or its summary.
func Parse(text []byte) (*Result, error) {
	var r Result
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, err
	}
	if r.Result == nil || r.Experiment != experiment {
		return nil, errors.New("it is not a result of scon latency")
	}
	return &r, nil
}

// experiment is the experiment's name in the file.
const experiment = "latency"

// busy returns the load averages.
func busy() string {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(load))
	if len(fields) < 3 {
		return ""
	}
	return strings.Join(fields[:3], " ")
}

func median(values []float64) float64 { return bench.Quartiles(values).Median }
