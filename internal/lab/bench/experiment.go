// Package bench measures what a container's network costs, side by side with a
// native process and with the express way.
//
// The way of an experiment:
//
//  1. An Experiment is data: modes, steps and the metrics that a step yields.
//  2. Run builds the bed: the lab's namespaces and a traffic peer in each node.
//  3. It goes through the rounds; each round measures every mode in turn, so
//     that what changes on the machine meanwhile meets all modes alike.
//  4. Before a mode the bed is made ready for it (Express starts a daemon), and
//     after each measurement it is asked whether the packets really went the
//     way that the mode stands for; if not, the sample is an error.
//  5. The Result holds all samples, ratios of medians with their intervals, and
//     writes itself as JSON and as a table.
package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/scon-project/scon/internal/lab"
	"github.com/scon-project/scon/internal/lab/bench/peer"
)

// Mode is a way for a process on the device to reach the edge.
type Mode struct {
	Name string
	// node of the lab that the process is in.
	node string
	// express says that a daemon is at work.
	express bool
	// flowtable says that nftables has one.
	flowtable bool
	// netkit says that the node has a netkit pair.
	netkit bool
}

var (
	// Native is a process of the device itself.
	Native = Mode{Name: "native", node: "device"}
	// Container is behind bridge, NAT and Docker's own rules.
	Container = Mode{Name: "container", node: "c1"}
	// Flowtable is the same container with the kernel's own fast path.
	Flowtable = Mode{Name: "flowtable", node: "c1", flowtable: true}
	// Express is the same container with SCON at work.
	Express = Mode{Name: "express", node: "c1", express: true}
	// Netkit is Express for a container with a netkit pair.
	Netkit = Mode{Name: "netkit", node: "c2", express: true, netkit: true}
)

// Metric is one figure that a step yields.
type Metric struct {
	Name string
	Unit string
}

// Step is one measurement. Steps run one after the other in every mode.
type Step struct {
	Name    string
	Metrics []Metric
	// Spec of the traffic; the runner fills in server address and CPUs.
	Spec peer.Spec
	// OneCPU puts both ends on one CPU, which makes round trips repeatable.
	OneCPU bool
	// Softirq measures the time in softirqs as well, which slows the traffic
	// down a little.
	Softirq bool
	// FewExpress says that most packets may stay regular, in Flowtable, too,
	// because the connections are too short to become known.
	FewExpress bool
	// Values of the metrics from what was measured.
	Values func(Measurement) map[string]float64
	// Traffic stands in for Spec, OneCPU, Softirq and Values; RunTraffic
	// carries it out.
	Traffic Traffic
}

// Measurement is what a step is computed from.
type Measurement struct {
	Served, Driven peer.Report
	// UplinkPackets of both directions.
	UplinkPackets uint64
	// SoftirqTime is the time of the network softirqs on all CPUs, 0 without
	// Step.Softirq.
	SoftirqTime time.Duration
	// DaemonTime is the processor time of SCON's daemon, 0 without one.
	DaemonTime time.Duration
}

// Experiment is a set of steps to measure in a set of modes.
type Experiment struct {
	Name  string
	Short string // one line for the help
	Modes []Mode
	Steps []Step
	// Rounds unless the user says otherwise.
	Rounds int
	// IPv6 says that the steps' traffic is of IPv6.
	IPv6 bool
	// Overlay says that the traffic is by VXLAN, as flannel has it.
	Overlay bool
	// Uplink is the kind of the uplink that the traffic is by, as
	// lab.Options.Uplink; "" for lab.Uplink.
	Uplink string
	// Way of the traffic if it is between two containers, else nil.
	Way *Way
	// Containers that RunTraffic needs; 0 for one.
	Containers int
	// Counted says that the samples are counted instructions: they are the
	// same again to a few thousandths, and shown that way.
	Counted bool
	// Pairs of modes that are compared; none means those that are of interest
	// in the lab.
	Pairs [][2]string
	// Against are the modes the ratios to which a summary keeps; nil keeps all.
	Against []string
	// Table writes the result for people instead of Result.WriteTable.
	Table func(r *Result, w io.Writer) error
}

// metrics of all steps in their order.
func (e Experiment) metrics() []Metric {
	var all []Metric
	for _, step := range e.Steps {
		all = append(all, step.Metrics...)
	}
	return all
}

// units of all metrics by their name.
func (e Experiment) units() map[string]string {
	units := map[string]string{}
	for _, m := range e.metrics() {
		units[m.Name] = m.Unit
	}
	return units
}

// OverIPv6 returns the experiment with the same steps over IPv6: quick6, udp6_64.
func (e Experiment) OverIPv6() Experiment {
	rename := func(name string) string {
		first, rest, _ := strings.Cut(name, "_")
		return first + "6_" + rest
	}
	e.Name, e.Short, e.IPv6 = e.Name+"6", e.Short+", over IPv6", true
	return e.renamed(rename)
}

// OverVXLAN returns the experiment with the same steps by the lab's flannel
// overlay, without nftables' flowtable: quick_vxlan, vxlan_udp_64.
func (e Experiment) OverVXLAN() Experiment {
	e.Name, e.Short, e.Overlay = e.Name+"_vxlan", e.Short+", over VXLAN", true
	return e.on(false, true).renamed(func(name string) string { return "vxlan_" + name })
}

// OverUplink returns the experiment with the same steps by the lab's second
// uplink, of a kind of lab.UplinkKinds: quick_vlan, vlan_udp_64.
func (e Experiment) OverUplink(kind string) Experiment {
	e.Name, e.Short, e.Uplink = e.Name+"_"+kind, e.Short+", over "+kind, kind
	return e.renamed(func(name string) string { return kind + "_" + name })
}

// renamed returns the experiment with other names of steps and metrics.
func (e Experiment) renamed(rename func(string) string) Experiment {
	e.Steps = slices.Clone(e.Steps)
	for i := range e.Steps {
		s := &e.Steps[i]
		s.Name = rename(s.Name)
		s.Metrics = slices.Clone(s.Metrics)
		for j := range s.Metrics {
			s.Metrics[j].Name = rename(s.Metrics[j].Name)
		}
		values := s.Values
		s.Values = func(m Measurement) map[string]float64 {
			renamed := map[string]float64{}
			for name, v := range values(m) {
				renamed[rename(name)] = v
			}
			return renamed
		}
	}
	return e
}

// Here returns the experiment without what this kernel does not have.
func (e Experiment) Here() Experiment { return e.on(HasFlowtable(), lab.HasNetkit()) }

// on returns the experiment for a kernel with a flowtable or without, and with
// netkit or without.
func (e Experiment) on(flowtable, netkit bool) Experiment {
	e.Modes = slices.DeleteFunc(slices.Clone(e.Modes), func(m Mode) bool {
		return m.flowtable && !flowtable || m.netkit && !netkit
	})
	return e
}

// hasNetkit tells whether a mode needs a container with a netkit pair.
func (e Experiment) hasNetkit() bool {
	return slices.ContainsFunc(e.Modes, func(m Mode) bool { return m.netkit })
}

// Only returns the experiment with some of its modes.
func (e Experiment) Only(names []string) (Experiment, error) {
	var modes []Mode
	for _, name := range names {
		i := slices.IndexFunc(e.Modes, func(m Mode) bool { return m.Name == name })
		if i < 0 {
			return Experiment{}, fmt.Errorf("experiment %s has no mode %q", e.Name, name)
		}
		modes = append(modes, e.Modes[i])
	}
	e.Modes = modes
	return e, nil
}

// OnlySteps returns the experiment with some of its steps.
func (e Experiment) OnlySteps(names []string) (Experiment, error) {
	var steps []Step
	for _, name := range names {
		i := slices.IndexFunc(e.Steps, func(s Step) bool { return s.Name == name })
		if i < 0 {
			return Experiment{}, fmt.Errorf("experiment %s has no step %q", e.Name, name)
		}
		steps = append(steps, e.Steps[i])
	}
	e.Steps = steps
	return e, nil
}
