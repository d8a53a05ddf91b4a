package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/scon-project/scon/lab/output"
)

// Result is the outcome of an experiment, and the content of its file.
type Result struct {
	Experiment string `json:"experiment"`
	Kernel     string `json:"kernel"`
	Machine    string `json:"machine"`
	// Rounds that were requested; an interrupted run or a failed round has fewer
	// samples.
	Rounds int `json:"rounds"`
	// Settings are the numbers that the experiment was asked for, such as rules.
	Settings map[string]int `json:"settings,omitempty"`
	// Modes holds the samples by mode and metric, in the order of the rounds. A
	// summary has five numbers instead: see Summarize.
	Modes map[string]map[string][]float64 `json:"modes"`
	// Summary is set if the samples are left out. ModeOrder then holds the modes in
	// the order in which they were measured.
	Summary   bool     `json:"summary,omitempty"`
	ModeOrder []string `json:"mode_order,omitempty"`
	// Ratios holds the ratios of medians by "MODE/MODE" and metric.
	Ratios map[string]map[string]Interval `json:"ratios"`

	// GapClosed is, by metric, the share of the difference between container and
	// native that express removes.
	GapClosed map[string]Interval `json:"gap_closed,omitempty"`
	// Spread is the interquartile range divided by the median.
	Spread map[string]map[string]float64 `json:"spread"`
	// Units of the metrics.
	Units map[string]string `json:"units"`
	// Distance of the two CPUs before and after the rounds.
	Distance struct {
		Before Distance `json:"before"`
		After  Distance `json:"after"`
	} `json:"cpu_distance"`
	// Samples hold details of every measurement, in the order in which they were
	// taken.
	Samples []Sample `json:"samples,omitempty"`
	// Errors of missing samples, and errors of samples that were measured again.
	Errors      []string  `json:"errors"`
	Retries     []string  `json:"retries"`
	Interrupted bool      `json:"interrupted"`
	Started     time.Time `json:"started"`
	Seconds     float64   `json:"seconds"` // of the whole run, including set-up

	// Content of the table, in this order.
	modes   []Mode
	metrics []Metric
	counted bool // Experiment.Counted
	pairs   [][2]string
	against []string
	table   func(r *Result, w io.Writer) error
}

// Sample is one measurement of one step in one mode.
type Sample struct {
	Round  int                `json:"round"` // from 1
	Mode   string             `json:"mode"`
	Step   string             `json:"step"`
	Values map[string]float64 `json:"values"`
	// Lost counts the messages of a stream that were sent and did not arrive.
	Lost uint64 `json:"lost"`
	// UplinkPackets counts the packets that crossed the device's uplink in both
	// directions, by its own counters.
	UplinkPackets uint64 `json:"uplink_packets"`
	// BridgePackets counts the packets that crossed the bridge, which is on a
	// container's regular path.
	BridgePackets uint64 `json:"bridge_packets"`
	// ExpressShare of the container's packets by the daemon's counters; 0 in other
	// modes.
	ExpressShare float64 `json:"express_share"`
	// Detail holds data of the experiment's own format.
	Detail json.RawMessage `json:"detail,omitempty"`
}

// ratios are the pairs of modes that are compared if both were measured.
var ratios = [][2]string{
	{Express.Name, Native.Name},
	{Container.Name, Native.Name},
	{Express.Name, Container.Name},
	{Express.Name, Flowtable.Name},
	{Flowtable.Name, Native.Name},
	{Flowtable.Name, Container.Name},
	{ExpressShort.Name, Native.Name},
	{ExpressShort.Name, Container.Name},
	{ExpressShort.Name, Flowtable.Name},
	{ExpressShort.Name, Express.Name},
	{Netkit.Name, Native.Name},
	{Netkit.Name, Express.Name},
	{Netkit.Name, Container.Name},
	{Netkit.Name, Flowtable.Name},
	{Netkit.Name, ExpressShort.Name},
}

// newResult returns a result of an experiment on this machine, without samples.
func newResult(e Experiment, rounds int) *Result {
	return &Result{
		Experiment: e.Name,
		Kernel:     kernelRelease(),
		Machine:    describeMachine(),
		Rounds:     rounds,
		Modes:      map[string]map[string][]float64{},
		Samples:    []Sample{},
		Errors:     []string{},
		Retries:    []string{},
		Units:      e.units(),
		Settings:   e.Settings,
		modes:      e.Modes,
		metrics:    e.metrics(),
		counted:    e.Counted,
		pairs:      e.pairs(),
		against:    e.Against,
		table:      e.Table,
	}
}

// pairs returns the pairs of modes to compare.
func (e Experiment) pairs() [][2]string {
	if e.Pairs == nil {
		return ratios
	}
	return e.Pairs
}

// add adds a sample to the result.
func (r *Result) add(s Sample) {
	if r.Modes[s.Mode] == nil {
		r.Modes[s.Mode] = map[string][]float64{}
	}
	for metric, value := range s.Values {
		r.Modes[s.Mode][metric] = append(r.Modes[s.Mode][metric], value)
	}
	r.Samples = append(r.Samples, s)
}

// summarize computes ratios, spread and gaps from the samples.
func (r *Result) summarize() {
	r.Spread = map[string]map[string]float64{}
	for mode, metrics := range r.Modes {
		r.Spread[mode] = map[string]float64{}
		for metric, samples := range metrics {
			// A median of 0 has no spread.
			if s := spread(samples); !math.IsNaN(s) && !math.IsInf(s, 0) {
				r.Spread[mode][metric] = s
			}
		}
	}
	r.Ratios = map[string]map[string]Interval{}
	for _, pair := range r.pairs {
		if intervals := r.compare(ratioOfMedians, pair[0], pair[1]); len(intervals) > 0 {
			r.Ratios[pair[0]+"/"+pair[1]] = intervals
		}
	}
	r.GapClosed = r.compare(gapClosed, Express.Name, Container.Name, Native.Name)
}

// compare estimates a statistic of several modes for each metric that all of them
// have measured.
func (r *Result) compare(statistic func(...[]float64) float64, modes ...string) map[string]Interval {
	intervals := map[string]Interval{}
	for _, metric := range r.metrics {
		sets := make([][]float64, 0, len(modes))
		for _, mode := range modes {
			if samples := r.Modes[mode][metric.Name]; len(samples) > 0 {
				sets = append(sets, samples)
			}
		}
		if len(sets) < len(modes) {
			continue
		}
		if i := bootstrap(statistic, sets...); i.finite() {
			intervals[metric.Name] = i
		}
	}
	return intervals
}

// WriteFile writes the result as JSON.
func (r *Result) WriteFile(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return output.Write(path, append(text, '\n'))
}
