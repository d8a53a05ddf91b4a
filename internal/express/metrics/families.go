package metrics

import (
	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/metrics"
)

var (
	buildInfo  = metrics.Gauge("scon_build_info", "Always 1. The daemon's version, the kernel's release, and how devices are hooked.", "kernel", "mode", "version")
	state      = metrics.Gauge("scon_state", "1 for the daemon's state, 0 for the others.", "state")
	generation = metrics.Gauge("scon_generation", "Generation of the decisions: grows with every change of routes, links, neighbours, and of rules that concern many connections.")
	hooks      = metrics.Gauge("scon_hooks", "Programs attached to devices.", "hook")
	skipped    = metrics.Gauge("scon_skipped_devices", "Devices that are not hooked.")

	conentries      = metrics.Gauge("scon_conentries", "Conentries: connections that go express or are about to.")
	conentriesLimit = metrics.Gauge("scon_conentries_limit", "The most Conentries that there may be.")
	tableBytes      = metrics.Gauge("scon_table_bytes", "Memory of the kernel that the table of Conentries takes.")
	tableRoom       = metrics.Gauge("scon_table_room", "Conentries that have room in the table before it has to grow.")
	composed        = metrics.Counter("scon_conentries_composed_total", "Conentries composed.")
	composing       = metrics.Histogram("scon_conentry_composing_seconds", "Times from the packet that made a connection a candidate until it had its Conentry.")
	refused         = metrics.Counter("scon_candidates_refused_total", "Connections that were checked and stay regular, each time they were.", "reason")

	expressPackets   = metrics.Counter("scon_express_packets_total", "Packets that went express, of all containers, those that are gone included.")
	expressBytes     = metrics.Counter("scon_express_bytes_total", "Bytes of express packets, from the IP header on.")
	regularPackets   = metrics.Counter("scon_regular_packets_total", "Packets of containers that took the regular path, including those of containers that are gone.")
	discardedPackets = metrics.Counter("scon_discarded_packets_total", "Packets dropped for a remembered drop of the firewall.")
	uplinkPackets    = metrics.Counter("scon_uplink_regular_packets_total", "Packets that stayed regular at the uplinks, the host's own included.", "reason")

	containerEntries = metrics.Gauge("scon_container_conentries", "Conentries of a container.", "container", "device")
	containerPaused  = metrics.Gauge("scon_container_paused", "1 if all packets of a container go regular by 'scon pause'.", "container", "device")
	containerPackets = metrics.Counter("scon_container_express_packets_total", "Packets that a container sent or received express.", "container", "device", "direction")
	containerBytes   = metrics.Counter("scon_container_express_bytes_total", "Bytes of a container's express packets, from the IP header on.", "container", "device", "direction")
	containerRegular = metrics.Counter("scon_container_regular_packets_total", "Packets that a container sent or received on the regular path.", "container", "device", "reason")

	changes    = metrics.Counter("scon_changes_total", "Changes that may make decisions stale: some, or all.", "kind")
	rulesRead  = metrics.Counter("scon_rules_read_total", "Times that all rules were read; otherwise their changes are followed.")
	concerned  = metrics.Counter("scon_rules_retired_total", "Conentries that changes of rules concerned.")
	unknown    = metrics.Histogram("scon_rules_unknown_seconds", "Times from a change of rules until the daemon knew them, in which everything was regular.")
	lost       = metrics.Counter("scon_messages_lost_total", "Times that netlink messages were lost; the whole state is read again then.", "source")
	heartbeats = metrics.Counter("scon_heartbeats_total", "Signs of life to the programs.")
)

// states are all values of label state.
var states = []string{api.StateActive, api.StatePaused, api.StateInert}

func (p page) daemon(s Snapshot) {
	p.Put(buildInfo, 1, s.Status.Kernel, s.Status.Mode, s.Status.Version)
	for _, name := range states {
		p.Put(state, truth(name == s.Status.State), name)
	}
	p.Put(generation, float64(s.Status.Generation))
	attached := make(map[string]uint64)
	for _, h := range s.Status.Hooks {
		attached[h.Hook]++
	}
	p.Each(hooks, attached)
	p.Put(skipped, float64(len(s.Status.Skipped)))
	p.Put(conentries, float64(s.Status.Totals.Entries))
	p.Put(conentriesLimit, float64(s.ConentriesLimit))
	p.Put(tableBytes, float64(s.Status.Table.Bytes))
	p.Put(tableRoom, float64(s.Status.Table.Room))
	p.Put(composed, float64(s.Composed))
	p.PutTimes(composing, s.Composing)
	p.Each(refused, s.Refused)
	p.Each(changes, s.Changes)
	p.Put(rulesRead, float64(s.Status.Rules.Read))
	p.Put(concerned, float64(s.Status.Rules.Retired))
	p.PutTimes(unknown, s.RulesUnknown)
	p.Each(lost, s.Lost)
	p.Put(heartbeats, float64(s.Heartbeats))
}

func (p page) totals(s api.Status) {
	p.Put(expressPackets, float64(s.Totals.ExpressPackets))
	p.Put(expressBytes, float64(s.Totals.ExpressBytes))
	p.Put(regularPackets, float64(s.Totals.RegularPackets))
	p.Put(discardedPackets, float64(s.Totals.DiscardedPackets))
	p.Each(uplinkPackets, s.Reasons)
}

func (p page) container(c api.Container) {
	p.Put(containerEntries, float64(c.Entries), c.Name, c.Dev)
	p.Put(containerPaused, truth(c.Paused), c.Name, c.Dev)
	for direction, n := range map[string]api.Count{"sent": c.ExpressSent, "received": c.ExpressReceived} {
		p.Put(containerPackets, float64(n.Packets), c.Name, c.Dev, direction)
		p.Put(containerBytes, float64(n.Bytes), c.Name, c.Dev, direction)
	}
	p.Each(containerRegular, c.Reasons, c.Name, c.Dev)
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
