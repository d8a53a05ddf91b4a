// Package bench measures the network cost of a container, compared with a native
// process and with the express path.
//
// An experiment runs as follows:
//
//  1. An Experiment is data: modes, steps and the metrics that a step yields.
//  2. Run builds the bed: the lab's namespaces and a traffic peer in each node.
//  3. Each round measures all modes alternately, so that changes of the machine
//     affect all modes alike.
//  4. Before a mode the bed is prepared for it (Express starts a daemon). After
//     each measurement, counters show which path the packets took; if it is not
//     the mode's path, the sample is an error.
//  5. The Result holds all samples and the ratios of medians with their
//     intervals, and writes itself as JSON and as a table.
package bench

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/scon-project/scon/lab/bench/peer"
	"github.com/scon-project/scon/test/bed/lab"
)

// Mode is a network path from a process on the device to the edge.
type Mode struct {
	Name string
	// node is the lab node of the process.
	node string
	// express is set if the daemon runs.
	express bool
	// short is set if conntrack is liberal, so that short connections go express.
	short bool
	// regular is set if no packet goes express although the daemon runs.
	regular bool
	// flowtable is set if nftables has a flowtable.
	flowtable bool
	// netkit is set if the node has a netkit pair.
	netkit bool
	// change of the rules while it is measured, in Churn.
	change change
}

var (
	// Native is a process in the device's own namespace.
	Native = Mode{Name: "native", node: "device"}
	// Container is a container behind a bridge, NAT and Docker's rules.
	Container = Mode{Name: "container", node: "c1"}
	// Flowtable is the same container with the kernel's flowtable.
	Flowtable = Mode{Name: "flowtable", node: "c1", flowtable: true}
	// Express is the same container with SCON's daemon running.
	Express = Mode{Name: "express", node: "c1", express: true}
	// ExpressShort is Express where conntrack is liberal.
	ExpressShort = Mode{Name: "express_short", node: "c1", express: true, short: true}
	// Netkit is Express for a container with a netkit pair.
	Netkit = Mode{Name: "netkit", node: "c2", express: true, netkit: true}
)

// Metric is one figure of a step.
type Metric struct {
	Name string
	Unit string
}

// Step is one measurement. Steps run one after the other in every mode.
type Step struct {
	Name    string
	Metrics []Metric
	// Spec of the traffic; the runner sets the server's address and the CPUs.
	Spec peer.Spec
	// OneCPU runs both ends on one CPU, which makes round trips repeatable.
	OneCPU bool
	// Softirq also measures the softirq time, which slows the traffic down
	// slightly.
	Softirq bool
	// FewExpress is set if most packets may stay regular, also in Flowtable,
	// because the connections are too short to be admitted.
	FewExpress bool
	// Inward is set if a container receives what the server's node sends.
	Inward bool
	// Values computes the metrics from a measurement.
	Values func(Measurement) map[string]float64
	// Traffic replaces Spec, OneCPU, Softirq and Values; RunTraffic runs it.
	Traffic Traffic
}

// Measurement is the input of Step.Values.
type Measurement struct {
	Served, Driven peer.Report
	// UplinkPackets counts both directions.
	UplinkPackets uint64
	// SoftirqTime is the network softirq time of all CPUs, 0 without Step.Softirq.
	SoftirqTime time.Duration
	// DaemonTime is the processor time of SCON's daemon, 0 without one.
	DaemonTime time.Duration
}

// Experiment is a set of steps to measure in a set of modes.
type Experiment struct {
	Name  string
	Short string // one line for --help
	Modes []Mode
	Steps []Step
	// Rounds is the default number of rounds.
	Rounds int
	// IPv6 is set if the steps' traffic uses IPv6.
	IPv6 bool
	// Overlay is set if the traffic crosses a VXLAN overlay like flannel's.
	Overlay bool
	// Uplink is the kind of uplink that the traffic crosses, as in
	// lab.Options.Uplink; "" for lab.Uplink.
	Uplink string
	// Path of traffic between two containers, nil for other traffic.
	Path *Path
	// Containers that RunTraffic needs; 0 means one.
	Containers int
	// Counted is set if the samples are instruction counts, which repeat to within
	// a few thousandths and are shown with more digits.
	Counted bool
	// Settings are the numbers that the result is for, by name; nil if it has none.
	Settings map[string]int
	// Pairs of modes to compare; nil for the default pairs of the lab.
	Pairs [][2]string
	// Against limits the ratios of a summary to those relative to these modes; nil
	// keeps all.
	Against []string
	// Table replaces Result.WriteTable.
	Table func(r *Result, w io.Writer) error
}

// metrics returns the metrics of all steps in order.
func (e Experiment) metrics() []Metric {
	var all []Metric
	for _, step := range e.Steps {
		all = append(all, step.Metrics...)
	}
	return all
}

// units returns the units of all metrics by name.
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

// OverVXLAN returns the experiment with the same steps across the lab's flannel
// overlay, without mode flowtable: quick_vxlan, vxlan_udp_64.
func (e Experiment) OverVXLAN() Experiment {
	e.Name, e.Short, e.Overlay = e.Name+"_vxlan", e.Short+", over VXLAN", true
	return e.supported(kernel{netkit: true, btf: true}).renamed(func(name string) string { return "vxlan_" + name })
}

// OverUplink returns the experiment with the same steps across the lab's second
// uplink, of a kind of lab.UplinkKinds: quick_vlan, vlan_udp_64.
func (e Experiment) OverUplink(kind string) Experiment {
	e.Name, e.Short, e.Uplink = e.Name+"_"+kind, e.Short+", over "+kind, kind
	return e.renamed(func(name string) string { return kind + "_" + name })
}

// renamed returns the experiment with its steps and metrics renamed.
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

// Here returns the experiment without the modes that this kernel does not support.
func (e Experiment) Here() Experiment { return e.supported(thisKernel()) }

// kernel is what a kernel has that modes need.
type kernel struct{ flowtable, netkit, btf bool }

func thisKernel() kernel {
	_, err := os.Stat("/sys/kernel/btf/vmlinux")
	return kernel{flowtable: HasFlowtable(), netkit: lab.HasNetkit(), btf: err == nil}
}

// supported returns the experiment without the modes that a kernel does not support.
func (e Experiment) supported(k kernel) Experiment {
	e.Modes = slices.DeleteFunc(slices.Clone(e.Modes), func(m Mode) bool {
		return m.flowtable && !k.flowtable || m.netkit && !k.netkit || m.short && !k.btf
	})
	return e
}

// hasNetkit reports whether a mode needs a container with a netkit pair.
func (e Experiment) hasNetkit() bool {
	return slices.ContainsFunc(e.Modes, func(m Mode) bool { return m.netkit })
}

// Only returns the experiment with the named modes only.
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

// OnlySteps returns the experiment with the named steps only.
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
