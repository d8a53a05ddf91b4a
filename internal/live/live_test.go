package live_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/live"
	"github.com/scon-project/scon/test/bed/check"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func pair(a, b uint64) *[2]uint64 { return &[2]uint64{a, b} }

// flow returns a Conentry that has carried n packets of 100 bytes each way.
func flow(port uint16, n uint64, age time.Duration) api.Flow {
	return api.Flow{
		Container: "web", Proto: "tcp", Orig: api.Tuple{Src: "172.17.0.2", Sport: port, Dst: "10.0.0.1", Dport: 80},
		ExpressPackets: [2]uint64{n, n}, ExpressBytes: [2]uint64{100 * n, 100 * n},
		RegularPackets: pair(n/2, 0), RegularBytes: pair(50*n, 0), AgeMS: age.Milliseconds(),
	}
}

func snapshot(at time.Duration, pid int, packets uint64, flows ...api.Flow) live.Snapshot {
	return live.Snapshot{At: start.Add(at), FlowsAt: start.Add(at), Flows: flows, Status: api.Status{
		PID: pid, State: api.StateActive, CPUSeconds: float64(packets) / 1e5,
		Containers: []api.Container{{
			Name: "web", ID: "4f2a", Dev: "veth1", RegularPackets: packets / 10, Reasons: map[string]uint64{"no_entry": packets / 10, "inert": 7},
			ExpressSent: api.Count{Packets: packets, Bytes: 100 * packets}, ExpressReceived: api.Count{Packets: packets, Bytes: 10 * packets},
		}},
		Totals:  api.Totals{ExpressPackets: 2 * packets, ExpressBytes: 110 * packets, RegularPackets: packets / 10},
		Reasons: map[string]uint64{"no_entry": packets},
	}}
}

// A daemon that reloads its settings begins again in the same process: its counters may begin
// at zero, its processor time goes on.
func TestReloaded(t *testing.T) {
	was, is := snapshot(0, 1, 1000), snapshot(time.Second, 1, 2000)
	is.Status.StartedMS = was.Status.StartedMS + 1
	if v := live.Between(was, is); !v.Restarted || v.DaemonCPU > 1.01 {
		t.Errorf("restarted %v, the daemon takes %v %%, want 1", v.Restarted, v.DaemonCPU)
	}
}

// Rates are those of the real interval, not of the one that was asked for.
func TestRates(t *testing.T) {
	v := live.Between(snapshot(0, 1, 1000, flow(1, 1000, time.Second)), snapshot(2500*time.Millisecond, 1, 6000, flow(1, 6000, 3500*time.Millisecond)))
	if v.Seconds != 2.5 || v.Express != (live.Rate{Packets: 4000, Bytes: 220000}) || v.Regular != 200 {
		t.Errorf("over %v s: express %+v, regular %v", v.Seconds, v.Express, v.Regular)
	}
	if v.DaemonCPU < 1.99 || v.DaemonCPU > 2.01 {
		t.Errorf("the daemon takes %v %%, want 2", v.DaemonCPU)
	}
	c := v.Containers[0]
	if c.Express != (live.Rate{Packets: 4000, Bytes: 220000}) || c.Regular != 200 || check.Diff(c.Reasons, map[string]float64{"no_entry": 200}) != "" {
		t.Errorf("container: %+v", c)
	}
	want := [2]live.Rate{{Packets: 2000, Bytes: 200000}, {Packets: 2000, Bytes: 200000}}
	if f := v.Connections[0]; f.Express != want || f.Regular == nil || f.Regular[0] != (live.Rate{Packets: 1000, Bytes: 100000}) {
		t.Errorf("connection: %+v, regular %+v", f.Express, f.Regular)
	}
	if len(v.Changes) != 0 || v.Restarted {
		t.Errorf("restarted %v, changes %+v", v.Restarted, v.Changes)
	}
}

// Nothing is known after one snapshot alone.
func TestFirstSnapshot(t *testing.T) {
	v := live.Between(live.Snapshot{}, snapshot(0, 1, 1000, flow(1, 1000, time.Second)))
	if v.Express != (live.Rate{}) || v.Containers[0].Express != (live.Rate{}) || v.Connections[0].Total() != (live.Rate{}) || v.DaemonCPU != 0 || len(v.Changes) != 0 {
		t.Errorf("got %+v", v)
	}
}

// A daemon that has been restarted may have taken the counters over or not.
func TestRestart(t *testing.T) {
	was := snapshot(0, 1, 1000, flow(1, 1000, 10*time.Second), flow(2, 1000, 10*time.Second))
	is := snapshot(time.Second, 2, 300, flow(1, 1500, 11*time.Second), flow(2, 200, 500*time.Millisecond))
	v := live.Between(was, is)
	if !v.Restarted || v.Express.Packets != 600 || v.Regular != 30 || v.Containers[0].Express.Packets != 600 {
		t.Errorf("restarted %v, express %+v, regular %v, container %+v", v.Restarted, v.Express, v.Regular, v.Containers[0])
	}
	if v.DaemonCPU != 0.3 {
		t.Errorf("the new daemon takes %v %%, want its time since its start, 0.3", v.DaemonCPU)
	}
	if a, b := v.Connections[0].Total().Packets, v.Connections[1].Total().Packets; a != 1000 || b != 400 {
		t.Errorf("connections: %v and %v packets/s, want 1000 of the one taken over, and 400 of the new one", a, b)
	}
	if v.Connections[1].Regular != nil {
		t.Errorf("regular rate of a connection that is new: %+v, want none", *v.Connections[1].Regular)
	}
	if len(v.Changes) != 1 || v.Changes[0].Kind != live.ChangeDaemon {
		t.Errorf("changes: %+v", v.Changes)
	}
}

func TestChanges(t *testing.T) {
	was, is := snapshot(0, 1, 0), snapshot(time.Second, 1, 0)
	was.Status.Rules = api.Rules{Generation: 5, Read: 1, Retired: 2, Unknown: 0.5}
	is.Status.Rules = api.Rules{Generation: 9, Read: 2, Retired: 5, Unknown: 0.5015}
	is.Status.State, is.Status.Why, is.Status.Generation = api.StateInert, "the rules cannot be read", 4
	is.Status.Containers = []api.Container{{ID: "77aa", Dev: "veth9"}}
	var got []string
	for _, c := range live.Between(was, is).Changes {
		if !c.At.Equal(is.At) {
			t.Errorf("%+v is not of the later snapshot", c)
		}
		got = append(got, c.Kind+": "+c.What+": "+c.Effect)
	}
	want := []string{
		"state: active -> inert: every packet goes regular: the rules cannot be read",
		"rules: rules changed: nftables generation 5 -> 9, all rules read again: 3 connections retired, everything regular for 1.5 ms",
		"generation: generation 0 -> 4: each direction of every connection was confirmed by a regular packet",
		"containers: 77aa came: its connections go express after their first packets",
		"containers: web went: its connections are removed",
	}
	if d := check.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestFilter(t *testing.T) {
	v := live.View{
		Containers: []live.Container{
			{Name: "web", ID: "4f2a", Dev: "veth1", Reasons: map[string]float64{"no_entry": 3}},
			{Name: "db", ID: "77aa", Dev: "veth2", Bridge: "br-web"},
		},
		Connections: []live.Connection{
			{Flow: api.Flow{Container: "web", Proto: "tcp", Path: "wire", State: "express", Orig: api.Tuple{Src: "172.17.0.2", Sport: 1, Dst: "10.0.0.1", Dport: 80}}},
			{Flow: api.Flow{Container: "web", Proto: "udp", Path: "bridged", Peer: "db", LeaseBound: "a rule with time", Orig: api.Tuple{Src: "fd00::2", Sport: 2, Dst: "fd00::3", Dport: 53}}},
			{Flow: api.Flow{Container: "db", Proto: "tcp", Path: "wire", State: "discard"}},
		},
	}
	for _, c := range []struct {
		filter                  string
		containers, connections []int
	}{
		{"", []int{0, 1}, []int{0, 1, 2}},
		{"WEB", []int{0, 1}, []int{0, 1}},
		{"container:web", []int{0, 1}, []int{0, 1}},
		{"container:4f2a", []int{0}, nil},
		{"container:web proto:udp", nil, []int{1}},
		{"peer:10.0.0.1:80", nil, []int{0}},
		{"10.0.0.1:80", nil, []int{0}},
		{"fd00::3", nil, []int{1}},
		{"peer:db", nil, []int{1}},
		{"reason:no_entry", []int{0}, nil},
		{"reason:time", nil, []int{1}},
		{"way:wire", nil, []int{0, 2}},
		{"way:discard", nil, []int{2}},
		{"web db", []int{1}, []int{1}},
	} {
		f, err := live.ParseFilter(c.filter)
		if err != nil {
			t.Errorf("%q: %v", c.filter, err)
			continue
		}
		var containers, connections []int
		for i := range v.Containers {
			if f.Container(&v.Containers[i]) {
				containers = append(containers, i)
			}
		}
		for i := range v.Connections {
			if f.Connection(&v.Connections[i]) {
				connections = append(connections, i)
			}
		}
		if !slices.Equal(containers, c.containers) || !slices.Equal(connections, c.connections) {
			t.Errorf("%q selects containers %v and connections %v, want %v and %v", c.filter, containers, connections, c.containers, c.connections)
		}
	}
	for _, text := range []string{"pear:db", "container:", "way: wire"} {
		if _, err := live.ParseFilter(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

func TestSort(t *testing.T) {
	all := []live.Container{{Name: "c", Regular: 1}, {Name: "b", Regular: 5}, {Name: "a", Regular: 1}}
	names := func() (s string) {
		for _, c := range all {
			s += c.Name
		}
		return s
	}
	for _, c := range []struct {
		by      string
		reverse bool
		want    string
	}{{"regular", false, "bac"}, {"regular", true, "cab"}, {"name", false, "abc"}, {"express", false, "abc"}, {"name", true, "cba"}} {
		i := slices.IndexFunc(live.ContainerOrders, func(o live.Order[live.Container]) bool { return o.Name == c.by })
		live.SortContainers(all, live.ContainerOrders[i], c.reverse)
		if got := names(); got != c.want {
			t.Errorf("by %s, reversed %v: %s, want %s", c.by, c.reverse, got, c.want)
		}
	}
}

// broken answers with a status, but not with flows.
type broken struct{}

func (broken) Status() (api.Status, error)      { return api.Status{PID: 1}, nil }
func (broken) Flows(string) ([]api.Flow, error) { return nil, errors.New("no flows") }

func TestTakeFails(t *testing.T) {
	if _, err := live.Take(broken{}); err == nil {
		t.Error("a snapshot without flows is no error")
	}
}
