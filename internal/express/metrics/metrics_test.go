package metrics_test

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/metrics"
	values "github.com/scon-project/scon/internal/metrics"
	"github.com/scon-project/scon/test/bed/check"
	"github.com/scon-project/scon/test/bed/metricstest"
)

// snapshot has something of everything.
var snapshot = metrics.Snapshot{
	Status: api.Status{
		State: api.StatePaused, Kernel: "6.1.0-test", Mode: "tcx", Rules: api.Rules{Generation: 9, Read: 2, Retired: 5, Unknown: 1.5}, Table: api.Table{Bytes: 1 << 20, Room: 99}, Generation: 7, Version: "v1",
		Hooks: []api.Hook{{Hook: "to_wire"}, {Hook: "from_container"}, {Hook: "from_container"}},
		Containers: []api.Container{{
			Name: "web \"1\"\n", Dev: "veth1", Entries: 2, Paused: true, ExpressPackets: 8,
			ExpressSent: api.Count{Packets: 5, Bytes: 500}, ExpressReceived: api.Count{Packets: 3, Bytes: 300},
			RegularPackets: 4, Reasons: map[string]uint64{"no_entry": 3, "lease_ended": 1},
		}, {Name: "db", Dev: "veth2"}},
		Totals:  api.Totals{Entries: 2, ExpressPackets: 20, ExpressBytes: 2000, RegularPackets: 9, DiscardedPackets: 1},
		Reasons: map[string]uint64{"no_entry": 12},
		Skipped: []api.Skipped{{Dev: "vxlan0"}},
	},
	ConentriesLimit: 8192, Composed: 6, Heartbeats: 11,
	Refused: map[string]uint64{"untracked": 2},
	Changes: map[string]uint64{"ruleset": 3},

	Composing: times(3*time.Millisecond, time.Hour), RulesUnknown: times(1500 * time.Millisecond),
	Lost: map[string]uint64{"conntrack": 1},
}

func times(of ...time.Duration) (t values.Times) {
	for _, d := range of {
		t.Add(d)
	}
	return t
}

// write is what Prometheus gets of a snapshot.
func write(t *testing.T, s metrics.Snapshot) metricstest.Families {
	t.Helper()
	return metricstest.Parse(t, func(w io.Writer) error { return metrics.Write(w, s) })
}

// Prometheus reads the values that the daemon has.
func TestWrite(t *testing.T) {
	got := metricstest.Values(write(t, snapshot))
	want := map[string]float64{
		`scon_build_info{kernel="6.1.0-test",mode="tcx",version="v1"}`: 1,

		`scon_state{state="active"}`: 0, `scon_state{state="paused"}`: 1, `scon_state{state="inert"}`: 0,
		`scon_generation`: 7,

		`scon_hooks{hook="from_container"}`: 2, `scon_hooks{hook="to_wire"}`: 1,
		`scon_skipped_devices`: 1,

		`scon_conentries`: 2, `scon_conentries_limit`: 8192, `scon_conentries_composed_total`: 6,
		`scon_candidates_refused_total{reason="untracked"}`: 2,

		`scon_express_packets_total`: 20, `scon_express_bytes_total`: 2000,
		`scon_regular_packets_total`: 9, `scon_discarded_packets_total`: 1,
		`scon_table_bytes`: 1 << 20,
		`scon_table_room`:  99,
		`scon_uplink_regular_packets_total{reason="no_entry"}`: 12,

		`scon_container_conentries{container="db",device="veth2"}`:                                 0,
		`scon_container_paused{container="db",device="veth2"}`:                                     0,
		`scon_container_express_packets_total{container="db",device="veth2",direction="sent"}`:     0,
		`scon_container_express_packets_total{container="db",device="veth2",direction="received"}`: 0,
		`scon_container_express_bytes_total{container="db",device="veth2",direction="sent"}`:       0,
		`scon_container_express_bytes_total{container="db",device="veth2",direction="received"}`:   0,

		`scon_rules_read_total`:                        2,
		`scon_rules_retired_total`:                     5,
		`scon_rules_unknown_seconds_sum`:               1.5,
		`scon_rules_unknown_seconds_count`:             1,
		`scon_conentry_composing_seconds_sum`:          3600.003,
		`scon_conentry_composing_seconds_count`:        2,
		`scon_changes_total{kind="ruleset"}`:           3,
		`scon_messages_lost_total{source="conntrack"}`: 1,
		`scon_heartbeats_total`:                        11,
	}
	for name, value := range map[string]float64{
		"scon_container_conentries{%s}": 2, "scon_container_paused{%s}": 1,
		`scon_container_express_packets_total{%s,direction="sent"}`:     5,
		`scon_container_express_packets_total{%s,direction="received"}`: 3,
		`scon_container_express_bytes_total{%s,direction="sent"}`:       500,
		`scon_container_express_bytes_total{%s,direction="received"}`:   300,
		`scon_container_regular_packets_total{%s,reason="no_entry"}`:    3,
		`scon_container_regular_packets_total{%s,reason="lease_ended"}`: 1,
	} {
		want[fmt.Sprintf(name, `container="web \"1\"?",device="veth1"`)] = value
	}
	if diff := check.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The metrics of the process are there, too.
func TestProcess(t *testing.T) {
	families := write(t, metrics.Snapshot{Started: time.UnixMilli(1234567)})
	process := func(name string) float64 {
		m := families[name].Metric[0]
		return m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	if got := process("process_start_time_seconds"); got != 1234.567 {
		t.Errorf("started at %v", got)
	}
	if got := process("process_open_fds"); got < 3 || got > 100 {
		t.Errorf("%v files", got)
	}
	if got := process("process_resident_memory_bytes"); got < 1<<20 || got > 1<<30 {
		t.Errorf("%v bytes", got)
	}
	if got := process("process_cpu_seconds_total"); got <= 0 || got > 600 {
		t.Errorf("%v seconds of CPU time", got)
	}
}

// What is no text in a name does not spoil the others.
func TestNoText(t *testing.T) {
	s := snapshot
	s.Status.Containers = []api.Container{{Name: "\xffweb\\", Dev: "veth1"}}
	families := write(t, s)
	if got := families["scon_container_paused"].Metric[0].Label[0].GetValue(); got != `?web\` {
		t.Errorf("got %q", got)
	}
}

// docs/metrics.md has every metric with its kind, its labels and its help.
func TestDocument(t *testing.T) {
	metricstest.WantDocumented(t, "../../../docs/metrics.md", "express", write(t, snapshot))
}
