package metrics_test

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/metrics"
)

// snapshot has something of everything.
var snapshot = metrics.Snapshot{
	Status: api.Status{
		State: api.StatePaused, Kernel: "6.1.0-test", Mode: "tcx", Generation: 7, Version: "v1",
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
	Lost:    map[string]uint64{"conntrack": 1},
	Pipe: &api.Pipe{
		Engines: []string{"sealed"}, Processes: 2, MemoryBytes: 131072, MemoryLimit: 1 << 28, Made: 5, Grown: 3, SentBytes: 77,
		Refused: map[string]uint64{"network": 4}, Connections: []api.PipeConnection{{Engine: "sealed"}},
	},
}

// write is what Prometheus gets of a snapshot.
func write(t *testing.T, s metrics.Snapshot) (text string, families map[string]*dto.MetricFamily) {
	t.Helper()
	var buf bytes.Buffer
	if err := metrics.Write(&buf, s); err != nil {
		t.Fatal(err)
	}
	text = buf.String()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(&buf)
	if err != nil {
		t.Fatal(err)
	}
	return text, families
}

// Prometheus reads the values that the daemon has.
func TestWrite(t *testing.T) {
	_, families := write(t, snapshot)
	got := make(map[string]float64)
	for name, f := range families {
		for _, m := range f.Metric {
			if strings.HasPrefix(name, "scon_") {
				got[series(name, m)] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
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
		`scon_uplink_regular_packets_total{reason="no_entry"}`: 12,

		`scon_container_conentries{container="db",device="veth2"}`:                                 0,
		`scon_container_paused{container="db",device="veth2"}`:                                     0,
		`scon_container_express_packets_total{container="db",device="veth2",direction="sent"}`:     0,
		`scon_container_express_packets_total{container="db",device="veth2",direction="received"}`: 0,
		`scon_container_express_bytes_total{container="db",device="veth2",direction="sent"}`:       0,
		`scon_container_express_bytes_total{container="db",device="veth2",direction="received"}`:   0,

		`scon_changes_total{kind="ruleset"}`:           3,
		`scon_messages_lost_total{source="conntrack"}`: 1,
		`scon_heartbeats_total`:                        11,

		`scon_pipe_processes`: 2, `scon_pipe_connections{engine="sealed"}`: 1,
		`scon_pipe_memory_bytes`: 131072, `scon_pipe_memory_limit_bytes`: 1 << 28,
		`scon_pipe_connections_made_total`: 5, `scon_pipe_connections_refused_total{reason="network"}`: 4,
		`scon_pipe_rings_grown_total`: 3, `scon_pipe_sent_bytes_total`: 77,
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
		want[fmt.Sprintf(name, `container="web \"1\"\n",device="veth1"`)] = value
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// series writes a metric's name as Prometheus does.
func series(name string, m *dto.Metric) string {
	var labels []string
	for _, l := range m.Label {
		labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
	}
	if len(labels) == 0 {
		return name
	}
	return name + "{" + strings.Join(labels, ",") + "}"
}

// Names, units and help are as Prometheus' users expect them.
func TestLint(t *testing.T) {
	text, _ := write(t, snapshot)
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// How the process does is told, too.
func TestProcess(t *testing.T) {
	_, families := write(t, metrics.Snapshot{Started: time.UnixMilli(1234567)})
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
	_, families := write(t, s)
	if got := families["scon_container_paused"].Metric[0].Label[0].GetValue(); got != `?web\` {
		t.Errorf("got %q", got)
	}
}

// docs/metrics.md has every metric with its kind, its labels and its help.
func TestDocument(t *testing.T) {
	content, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(content)) {
		if strings.HasPrefix(line, "| `scon_") && strings.Count(line, " | ") == 3 {
			got = append(got, strings.TrimSpace(line))
		}
	}
	_, families := write(t, snapshot)
	var want []string
	for name, f := range families {
		if !strings.HasPrefix(name, "scon_") {
			continue
		}
		var labels []string
		for _, l := range f.Metric[0].Label {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		want = append(want, fmt.Sprintf("| `%s` | %s | %s | %s |",
			name, strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), f.GetHelp()))
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/metrics.md differs (-code +document):\n%s", diff)
	}
}
