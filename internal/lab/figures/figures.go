// Package figures reproduces the figures of the paper "Intelligent Packet
// Processing for Performant Containers in IoT" (SCON) with real programs in the
// lab: nginx, mosquitto, iperf3.
//
// The way of a run:
//
//  1. The figures that are asked for name their experiments; Check looks for
//     the programs that those need.
//  2. Run carries out one bench.Experiment after the other and writes each
//     result to a file. What is there already of other experiments stays.
//  3. Draw reads the files and makes the report and the plots of them: the
//     paper's figure beside ours.
//
// Load generation over HTTP and MQTT, and drawing, are in a program of their
// own, package helper, so that SCON's daemon does not carry their
// libraries.
package figures

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/scon-project/scon/internal/lab/bench"
)

// Effort is how much is measured.
type Effort struct {
	// Rounds of every experiment.
	Rounds int
	// HTTP, MQTT and Latency are how long their samples take.
	HTTP, MQTT, Latency time.Duration
	// Intervals of the MQTT messages, and how many messages of each.
	Intervals []Interval
	// Sizes of the messages that go through iperf3 for a second each, bytes.
	Sizes []int
	// ProfileRounds of Fig. 4 and 13.
	ProfileRounds int
	// Flows in a sample.
	Flows int
	// Containers at once, and the sizes of their messages.
	Containers, ContainerSizes []int
}

// Interval between messages.
type Interval struct {
	Length   time.Duration
	Messages int
}

// Full takes about 13 minutes, Quick less than two.
var (
	Full = Effort{
		Rounds:  5,
		HTTP:    3 * time.Second,
		MQTT:    3 * time.Second,
		Latency: 500 * time.Millisecond,
		Intervals: []Interval{
			{time.Second, 5}, {100 * time.Millisecond, 20}, {10 * time.Millisecond, 100}, {time.Millisecond, 1000},
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
			{time.Second, 2}, {100 * time.Millisecond, 5}, {10 * time.Millisecond, 30}, {time.Millisecond, 200},
		},
		Sizes:          []int{64, 1024},
		ProfileRounds:  1,
		Flows:          500,
		Containers:     []int{1, 4},
		ContainerSizes: []int{64},
	}
)

// sizes of messages in the paper, bytes.
var sizes = []int{32, 64, 128, 256, 512, 1024}

// warmUp is long enough for a connection to go express.
const warmUp = 50

// source is an experiment that figures are drawn from.
type source struct {
	name string
	// experiment but for its name, modes and rounds.
	experiment func(Effort) bench.Experiment
	programs   []program
	// takes says how long a step's sample takes, about.
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

// prepare returns the experiment of a source as it is measured here.
func (s source) prepare(e Effort) bench.Experiment {
	x := s.named(e)
	x.Rounds = e.Rounds
	return x.Here()
}

// named is the experiment of a source with its name and all modes.
func (s source) named(e Effort) bench.Experiment {
	x := s.experiment(e)
	x.Name = s.name
	x.Modes = []bench.Mode{bench.Native, bench.Container, bench.Flowtable, bench.Express}
	return x
}

// Experiments that write the results, for bench.ReadResult.
func Experiments() []bench.Experiment {
	var all []bench.Experiment
	for _, s := range sources {
		all = append(all, s.named(Full))
	}
	return all
}

// IDs of the figures that can be measured, as the paper numbers them.
func IDs() []string {
	var ids []string
	for _, f := range figures {
		ids = append(ids, f.id)
	}
	return ids
}

// sourcesOf returns what has to be measured for some figures, and whether a
// profile has; none means all.
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
