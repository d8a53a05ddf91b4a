package bench

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/scon-project/scon/lab/bench/peer"
)

// costCount is the number of messages, exchanges or connections in a sample. It is
// large enough that a tick of the guest's clock or the daemon's heartbeat adds next
// to nothing, and that what the daemon does for many connections at once counts.
const costCount = 5000

// Cost counts the instructions per message for several sizes, in one direction and round
// trip, and those of a whole TCP connection. It is meaningful only in a guest whose
// clock counts instructions: see CountInGuest.
var Cost = Experiment{
	Name:    "cost",
	Short:   "instructions per message in a guest whose clock counts them",
	Modes:   []Mode{Native, Container, Flowtable, Express, ExpressShort, Netkit},
	Rounds:  3,
	Counted: true,
	Steps: []Step{
		costStep("udp_64", "udp", peer.Stream, 64),
		costStep("udp_256", "udp", peer.Stream, 256),
		costStep("udp_1024", "udp", peer.Stream, 1024),
		costStep("udp_rr_64", "udp", peer.RequestResponse, 64),
		costStep("udp_rr_256", "udp", peer.RequestResponse, 256),
		costStep("udp_rr_1024", "udp", peer.RequestResponse, 1024),
		costStep("tcp_64", "tcp", peer.Stream, 64),
		costStep("tcp_256", "tcp", peer.Stream, 256),
		costStep("tcp_1024", "tcp", peer.Stream, 1024),
		costStep("tcp_rr_64", "tcp", peer.RequestResponse, 64),
		costStep("tcp_rr_256", "tcp", peer.RequestResponse, 256),
		costStep("tcp_rr_1024", "tcp", peer.RequestResponse, 1024),
		costStep("tcp_crr", "tcp", peer.Connections, 64),
	},
}

// costStorms are the steps of Cost on paths by a bridge to outside: frames to addresses that
// the bridge does not know, from the mode's process and from outside.
var costStorms = []Step{costStorm("storm_out", false), costStorm("storm_in", true)}

func costStorm(name string, inward bool) Step {
	s := costStep(name, "udp", peer.Storm, 64)
	s.FewExpress, s.Inward = true, inward
	return s
}

// costStep returns the step of metric NAME_insn: instructions per message, exchange
// or connection.
func costStep(name, proto string, pattern peer.Pattern, size int) Step {
	metric := name + "_insn"
	return Step{
		Name:       name,
		Metrics:    []Metric{{metric, "instructions"}},
		Spec:       peer.Spec{Pattern: pattern, Proto: proto, Size: size, Count: costCount, WarmUp: warmUp},
		OneCPU:     true,
		FewExpress: pattern == peer.Connections,
		Values: func(m Measurement) map[string]float64 {
			// The clock advances by one nanosecond per instruction.
			return map[string]float64{metric: float64(m.Driven.Elapsed) / float64(m.Driven.Messages)}
		},
	}
}

// countingBed measures with peer.Lockstep instead of peer processes.
type countingBed struct{ *bed }

// Count runs Cost, or some of its steps, on this machine, whose clock must count
// instructions.
func Count(ctx context.Context, e Experiment, o Options) (*Result, error) {
	return runIn(ctx, e, o, func() (closableBed, error) {
		b, err := openLab(e)
		return countingBed{b}, err
	})
}

func (b countingBed) take(_ context.Context, mode Mode, step Step) (Sample, error) {
	spec := step.Spec
	spec.Address, spec.Reach = netip.AddrPortFrom(b.server, 0), b.reach
	meters := b.meters()
	before, err := meters.read()
	if err != nil {
		return Sample{}, err
	}
	count, server, driver := peer.Lockstep, b.serverNode, mode.node
	if spec.Pattern == peer.Storm {
		count = peer.Flood
	}
	if step.Inward {
		server, driver = Container.node, b.serverNode
	}
	driven, err := count(b.lab.Node(server), b.lab.Node(driver), spec)
	if err != nil {
		return Sample{}, err
	}
	mode.Settle()
	after, err := meters.read()
	if err != nil {
		return Sample{}, err
	}
	return after.since(before).sample(mode, step, Measurement{Served: driven, Driven: driven})
}

// countedFootnote describes how the figures of Cost were measured.
func (r *Result) countedFootnote() string {
	lines := []string{
		fmt.Sprintf("%s, Linux %s; medians of %d rounds, modes interleaved in one boot.", r.Machine, r.Kernel, r.Rounds),
		fmt.Sprintf("The widest spread of a metric's rounds is %.2f %%.", 100*r.widest()),
	}
	return strings.Join(append(lines, r.problems()...), "\n")
}

// widest returns the largest deviation of a sample from its median, relative to
// that median.
func (r *Result) widest() (widest float64) {
	for _, metrics := range r.Modes {
		for _, samples := range metrics {
			m := median(samples)
			for _, s := range samples {
				widest = max(widest, s/m-1, 1-s/m)
			}
		}
	}
	return widest
}
