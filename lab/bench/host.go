package bench

import "slices"

// hostConnections is the number of connections in a sample of Host.
const hostConnections = 4000

// Loaded is a process in the device's own namespace while SCON's daemon runs: its packets
// pass the hooks of the uplink and stay regular.
var Loaded = Mode{Name: "loaded", node: Native.node, express: true, regular: true}

// Host shows what the host's own traffic pays for SCON, which does nothing for it.
var Host = Experiment{
	Name:   "host",
	Short:  "what the host's own traffic pays while SCON is loaded",
	Rounds: 20,
	Steps: []Step{
		stream("udp_64", "udp", 64),
		requests("udp_rr", "udp"),
		requests("tcp_rr", "tcp"),
		Short(hostConnections).Steps[0],
	},
}.ofHost()

// OfHost returns the experiment with the same steps for a process of the host, without and
// with SCON: cost-host.
func (e Experiment) OfHost() Experiment {
	e.Name, e.Short = e.Name+"-host", e.Short+", for a process of the host"
	return e.ofHost()
}

// ofHost returns the experiment in the modes Native and Loaded.
func (e Experiment) ofHost() Experiment {
	e.Modes, e.Pairs = []Mode{Native, Loaded}, [][2]string{{Loaded.Name, Native.Name}}
	return e
}

// isOfHost reports whether the experiment is about a process of the host.
func (e Experiment) isOfHost() bool { return slices.Contains(e.Modes, Loaded) }
