package metrics

import "github.com/scon-project/scon/internal/api"

var (
	buildInfo  = gauge("scon_build_info", "Always 1. The daemon's version, the kernel's release, and how devices are hooked.", "kernel", "mode", "version")
	state      = gauge("scon_state", "1 for the daemon's state, 0 for the others.", "state")
	generation = gauge("scon_generation", "Generation of the decisions: grows with every change of rules, routes, links, neighbours.")
	hooks      = gauge("scon_hooks", "Programs attached to devices.", "hook")
	skipped    = gauge("scon_skipped_devices", "Devices that are not hooked.")

	conentries      = gauge("scon_conentries", "Conentries: connections that go express or are about to.")
	conentriesLimit = gauge("scon_conentries_limit", "The most Conentries that there may be.")
	composed        = counter("scon_conentries_composed_total", "Conentries composed since the daemon's start.")
	refused         = counter("scon_candidates_refused_total", "Connections that were looked at and stay regular, each time they were, since the daemon's start.", "reason")

	expressPackets   = counter("scon_express_packets_total", "Packets that went express, of all containers, those that are gone included.")
	expressBytes     = counter("scon_express_bytes_total", "Bytes of express packets, from the IP header on.")
	regularPackets   = counter("scon_regular_packets_total", "Packets of containers that took the regular path, including those of containers that are gone.")
	discardedPackets = counter("scon_discarded_packets_total", "Packets dropped for a remembered drop of the firewall.")
	uplinkPackets    = counter("scon_uplink_regular_packets_total", "Packets that stayed regular at the uplinks, the host's own included.", "reason")

	containerEntries = gauge("scon_container_conentries", "Conentries of a container.", "container", "device")
	containerPaused  = gauge("scon_container_paused", "1 if all packets of a container go regular by 'scon pause'.", "container", "device")
	containerPackets = counter("scon_container_express_packets_total", "Packets that a container sent or received express.", "container", "device", "direction")
	containerBytes   = counter("scon_container_express_bytes_total", "Bytes of a container's express packets, from the IP header on.", "container", "device", "direction")
	containerRegular = counter("scon_container_regular_packets_total", "Packets that a container sent or received on the regular path.", "container", "device", "reason")

	changes    = counter("scon_changes_total", "Changes that made decisions stale since the daemon's start.", "kind")
	lost       = counter("scon_messages_lost_total", "How often the kernel told more than was read in time since the daemon's start: everything is looked at anew then.", "source")
	heartbeats = counter("scon_heartbeats_total", "Signs of life to the programs since the daemon's start.")
)

var (
	pipeProcesses   = gauge("scon_pipe_processes", "Processes that are connected to the pipe's broker.")
	pipeConnections = gauge("scon_pipe_connections", "Connections of the pipe.", "engine")
	pipeMemory      = gauge("scon_pipe_memory_bytes", "Memory of the pipe's rings.")
	pipeLimit       = gauge("scon_pipe_memory_limit_bytes", "What the pipe's rings may take.")
	pipeMade        = counter("scon_pipe_connections_made_total", "Connections of the pipe since the daemon's start.")
	pipeRefused     = counter("scon_pipe_connections_refused_total", "Connections of the pipe that were refused since the daemon's start.", "reason")
	pipeGrown       = counter("scon_pipe_rings_grown_total", "Rings of the pipe that became larger since the daemon's start.")
	pipeSent        = counter("scon_pipe_sent_bytes_total", "Bytes that ends of the pipe say to have sent since the daemon's start.")
)

// states are all values of label state.
var states = []string{api.StateActive, api.StatePaused, api.StateInert}

func (p page) daemon(s Snapshot) {
	p.put(buildInfo, 1, s.Status.Kernel, s.Status.Mode, s.Status.Version)
	for _, name := range states {
		p.put(state, truth(name == s.Status.State), name)
	}
	p.put(generation, float64(s.Status.Generation))
	attached := make(map[string]uint64)
	for _, h := range s.Status.Hooks {
		attached[h.Hook]++
	}
	p.each(hooks, attached)
	p.put(skipped, float64(len(s.Status.Skipped)))
	p.put(conentries, float64(s.Status.Totals.Entries))
	p.put(conentriesLimit, float64(s.ConentriesLimit))
	p.put(composed, float64(s.Composed))
	p.each(refused, s.Refused)
	p.each(changes, s.Changes)
	p.each(lost, s.Lost)
	p.put(heartbeats, float64(s.Heartbeats))
}

func (p page) pipe(s api.Pipe) {
	p.put(pipeProcesses, float64(s.Processes))
	byEngine := make(map[string]uint64)
	for _, name := range s.Engines {
		byEngine[name] = 0
	}
	for _, c := range s.Connections {
		byEngine[c.Engine]++
	}
	p.each(pipeConnections, byEngine)
	p.put(pipeMemory, float64(s.MemoryBytes))
	p.put(pipeLimit, float64(s.MemoryLimit))
	p.put(pipeMade, float64(s.Made))
	p.each(pipeRefused, s.Refused)
	p.put(pipeGrown, float64(s.Grown))
	p.put(pipeSent, float64(s.SentBytes))
}

func (p page) totals(s api.Status) {
	p.put(expressPackets, float64(s.Totals.ExpressPackets))
	p.put(expressBytes, float64(s.Totals.ExpressBytes))
	p.put(regularPackets, float64(s.Totals.RegularPackets))
	p.put(discardedPackets, float64(s.Totals.DiscardedPackets))
	p.each(uplinkPackets, s.Reasons)
}

func (p page) container(c api.Container) {
	p.put(containerEntries, float64(c.Entries), c.Name, c.Dev)
	p.put(containerPaused, truth(c.Paused), c.Name, c.Dev)
	for direction, n := range map[string]api.Count{"sent": c.ExpressSent, "received": c.ExpressReceived} {
		p.put(containerPackets, float64(n.Packets), c.Name, c.Dev, direction)
		p.put(containerBytes, float64(n.Bytes), c.Name, c.Dev, direction)
	}
	p.each(containerRegular, c.Reasons, c.Name, c.Dev)
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
