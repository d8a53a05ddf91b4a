// Package figures reproduces the figures of the paper "Intelligent Packet
// Processing for Performant Containers in IoT" (SCON) with real programs in the
// lab: nginx, mosquitto, iperf3.
//
// A run has these steps:
//
//  1. The requested figures name their experiments; Check searches for the
//     programs that those need.
//  2. Run runs one bench.Experiment after the other and writes each result to
//     a file. It keeps the existing results of other experiments.
//  3. Draw reads the files and writes the report and the plots: the paper's
//     numbers beside ours.
//
// The load generators for HTTP and MQTT and the plotting are in package helper,
// which runs as a process of its own.
package figures

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/scon-project/scon/lab/bench"
)

// Effort is the amount of measuring.
type Effort struct {
	// Rounds of every experiment.
	Rounds int
	// HTTP, MQTT and Latency are the durations of their samples.
	HTTP, MQTT, Latency time.Duration
	// Intervals between MQTT messages, with the number of messages of each.
	Intervals []Interval
	// Sizes of the messages that iperf3 sends for a second each, in bytes.
	Sizes []int
	// ProfileRounds of Fig. 4 and 13.
	ProfileRounds int
	// Flows per sample.
	Flows int
	// Containers that send at the same time, and the sizes of their messages.
	Containers, ContainerSizes []int
}

// Interval between messages.
type Interval struct {
	Length   time.Duration
	Messages int
	// Before are messages at the same interval that are not counted: a connection that is
	// silent for long has to show its rhythm before its Conentry is kept for that.
	Before int
}

// Full takes about half an hour, Quick less than two.
var (
	Full = Effort{
		Rounds:  5,
		HTTP:    3 * time.Second,
		MQTT:    3 * time.Second,
		Latency: 500 * time.Millisecond,
		Intervals: []Interval{
			{10 * time.Second, 3, 3}, {time.Second, 5, 0}, {100 * time.Millisecond, 20, 0}, {10 * time.Millisecond, 100, 0}, {time.Millisecond, 1000, 0},
		},
		Sizes:          sizes,
		ProfileRounds:  6,
		Flows:          2000,
		Containers:     []int{1, 2, 3, 4},
		ContainerSizes: []int{64, 1024},
	}
	Quick = Effort{
		Rounds:  2,
		HTTP:    500 * time.Millisecond,
		MQTT:    500 * time.Millisecond,
		Latency: 100 * time.Millisecond,
		Intervals: []Interval{
			{time.Second, 2, 0}, {100 * time.Millisecond, 5, 0}, {10 * time.Millisecond, 30, 0}, {time.Millisecond, 200, 0},
		},
		Sizes:          []int{64, 1024},
		ProfileRounds:  1,
		Flows:          500,
		Containers:     []int{1, 4},
		ContainerSizes: []int{64},
	}
)

// sizes of the paper's messages, in bytes.
var sizes = []int{32, 64, 128, 256, 512, 1024}

// warmUp messages are enough for a connection to become express.
const warmUp = 50

// source is an experiment whose results figures are drawn from.
type source struct {
	name string
	// experiment without its name, modes and rounds.
	experiment func(Effort) bench.Experiment
	programs   []program
	// takes estimates the duration of a step's sample.
	takes func(Effort, bench.Step) time.Duration
}

// sources in the order in which they are measured.
var sources = []source{
	{"http", httpExperiment, []program{nginx}, func(e Effort, _ bench.Step) time.Duration { return e.HTTP }},
	{"mqtt", mqttExperiment, []program{mosquitto}, func(e Effort, _ bench.Step) time.Duration { return e.MQTT }},
	{"intervals", intervalsExperiment, []program{mosquitto}, intervalTakes},
	{"tcp", tcpExperiment, []program{iperf3}, aSecond},
	{"udp", udpExperiment, []program{iperf3}, aSecond},
	{"roundtrips", roundTripsExperiment, nil, func(e Effort, _ bench.Step) time.Duration { return e.Latency }},
	{"flows", flowsExperiment, nil, func(e Effort, _ bench.Step) time.Duration { return time.Duration(e.Flows) * 10 * time.Microsecond }},
	{"scale", scaleExperiment, []program{iperf3}, aSecond},
}

func aSecond(Effort, bench.Step) time.Duration { return iperfSeconds * time.Second }

// prepare returns the experiment of a source with the modes of this machine.
func (s source) prepare(e Effort) bench.Experiment {
	x := s.named(e)
	x.Rounds = e.Rounds
	return x.Here()
}

// named returns the experiment of a source with its name and all modes.
func (s source) named(e Effort) bench.Experiment {
	x := s.experiment(e)
	x.Name = s.name
	x.Modes = []bench.Mode{bench.Native, bench.Container, bench.Flowtable, bench.Express}
	return x
}

// Experiments returns the experiments that write the results, for bench.ReadResult.
func Experiments() []bench.Experiment {
	var all []bench.Experiment
	for _, s := range sources {
		all = append(all, s.named(Full))
	}
	return all
}

// IDs returns the paper's numbers of the figures that can be measured.
func IDs() []string {
	var ids []string
	for _, f := range figures {
		ids = append(ids, f.id)
	}
	return ids
}

// sourcesOf returns the sources of some figures, and whether they need a profile;
// no figures means all.
func sourcesOf(ids []string) (chosen []source, profile bool, err error) {
	var needed []string
	for _, id := range ids {
		i := slices.IndexFunc(figures, func(f figure) bool { return f.id == id })
		if i < 0 {
			return nil, false, fmt.Errorf("figure %q: want some of %s", id, strings.Join(IDs(), ", "))
		}
		needed = append(needed, figures[i].sources...)
	}
	for _, s := range sources {
		if len(ids) == 0 || slices.Contains(needed, s.name) {
			chosen = append(chosen, s)
		}
	}
	return chosen, len(ids) == 0 || slices.Contains(needed, profileSource), nil
}
