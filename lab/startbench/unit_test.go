package startbench

import (
	"bufio"
	"encoding/json"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scon-project/scon/lab/bench"
)

func TestParseMode(t *testing.T) {
	for name, want := range map[string]Mode{
		"none":                    {Network: "none"},
		"bridge+qos":              {Network: "bridge", QoS: true},
		"scon-pool+admission+oci": {Network: "scon-pool", Admission: true, OCI: true},
		"scon-nopool+rules=100":   {Network: "scon-nopool", Rules: 100},
		"scon-pool+tenants=5":     {Network: "scon-pool", Tenants: 5},
		"scon-pool+kind=macvlan":  {Network: "scon-pool", Kind: "macvlan"},

		"scon-pool+tenants=5+kind=tc-routing": {Network: "scon-pool", Tenants: 5, Kind: "tc-routing"},
		"scon-pool+tenants=5+kind=netkit":     {Network: "scon-pool", Tenants: 5, Kind: "netkit"},
	} {
		want.Name = name
		if got, err := ParseMode(name); err != nil || got != want {
			t.Errorf("ParseMode(%q) = %+v, %v", name, got, err)
		}
	}
	for name, want := range map[string]string{
		"":                     `no network ""`,
		"brigde":               `did you mean "bridge"?`,
		"scon-pool+fast":       `no option "fast"`,
		"scon-pool+rules=many": `"many": want a number`,
		"scon-pool+rules=0":    `"0": want a number`,
		"bridge+rules=5":       "only scon-nopool and scon-pool",
		"none+qos":             "no bandwidth",
		"scon-pool+kind=vteh":  `kind is "vteh": want veth`,
		"scon-pool+kind=ovs":   "does not start Open vSwitch",

		"scon-pool+tenants=5+kind=macvlan": "tenants: those of kind macvlan would share the one uplink",
		"scon-pool+tenants=5+kind=ipvlan":  "want kind veth, ptp, netkit or tc-routing",
		"scon-pool+kind=macvlan+qos":       "qos: kind macvlan has no device on the host",
		"scon-pool+kind=macvlan+rules=5":   "rules: traffic of kind macvlan",
	} {
		if _, err := ParseMode(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseMode(%q): %v, want %q in it", name, err, want)
		}
	}
}

func TestParseHierarchies(t *testing.T) {
	const v1 = `cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
proc /proc proc rw 0 0
`
	got, err := parseHierarchies(bufio.NewScanner(strings.NewReader(v1)))
	want := map[string]string{
		"cpu": "/sys/fs/cgroup/cpu,cpuacct", "cpuacct": "/sys/fs/cgroup/cpu,cpuacct",
		"name=systemd": "/sys/fs/cgroup/systemd", "": "/sys/fs/cgroup/unified",
	}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("hierarchies %v, %v; want %v", got, err, want)
	}
	g := group{name: "x", roots: got}
	if !g.v1() || g.unified() != "/sys/fs/cgroup/unified/x" {
		t.Errorf("v1 %v, unified %q", g.v1(), g.unified())
	}
	got, err = parseHierarchies(bufio.NewScanner(strings.NewReader("cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n")))
	if g.roots = got; err != nil || g.v1() || len(g.controllers()) != 1 {
		t.Errorf("v2: %v, %v", got, err)
	}
	if _, err := parseHierarchies(bufio.NewScanner(strings.NewReader("proc /proc proc rw 0 0\n"))); err == nil {
		t.Error("a machine without cgroups is accepted")
	}
}

func TestParseKernelMemory(t *testing.T) {
	const meminfo = `MemTotal:       24689764 kB
Slab:             100000 kB
KernelStack:        2000 kB
PageTables:         3000 kB
Percpu:              400 kB
`
	if got, err := parseKernelMemory(strings.NewReader(meminfo)); got != 105400 || err != nil {
		t.Errorf("%d KiB, %v; want 105400", got, err)
	}
}

func startReport() Report {
	const ms = 1e6
	return Report{Begun: 100 * ms, Containers: []Container{
		{Stages: []Stage{{StageAdd, 100 * ms, 110 * ms}, {StageStart, 110 * ms, 150 * ms}}},
		{Stages: []Stage{{StageAdd, 105 * ms, 125 * ms}, {StageStart, 125 * ms, 145 * ms}, {StagePing, 145 * ms, 160 * ms}}},
	}}
}

func TestStartValues(t *testing.T) {
	got := startValues(startReport())
	for metric, want := range map[string]float64{
		"total_ms": 60, "addcni_ms": 15, "startvm_ms": 30, "ping_ms": 15, "add_p50_ms": 15, "add_p99_ms": 19.9,
	} {
		if off := got[metric] - want; off > 1e-9 || off < -1e-9 {
			t.Errorf("%s = %v, want %v", metric, got[metric], want)
		}
	}
	if _, ok := got["cgroup_ms"]; ok {
		t.Error("a stage without containers has a time")
	}
}

func TestTypicalTimeline(t *testing.T) {
	detail, err := json.Marshal(timelines(startReport()))
	if err != nil {
		t.Fatal(err)
	}
	r := &bench.Result{Modes: map[string]map[string][]float64{"a": {"total_ms": {10, 30, 90}}}}
	for _, total := range []float64{10, 90, 30} {
		r.Samples = append(r.Samples, bench.Sample{Mode: "a", Detail: detail, Values: map[string]float64{"total_ms": total}})
	}
	keepTypical(r)
	for i, s := range r.Samples {
		if (s.Detail != nil) != (i == 2) {
			t.Errorf("sample of %v ms: timelines %v", s.Values, s.Detail != nil)
		}
	}
	lines, err := typical(r, "a")
	if err != nil || len(lines) != 2 || lines[1][2] != (TimelineStage{StagePing, 45, 60}) {
		t.Errorf("timelines %v, %v", lines, err)
	}
}

func TestLimits(t *testing.T) {
	if err := (Limits{"add_cni": 0, "cgroup": 4096}).Check(); err != nil {
		t.Error(err)
	}
	for text, l := range map[string]Limits{
		`did you mean "cgroup"?`: {"cgruop": 1},
		"cgroup=-1: want 0":      {"cgroup": -1},
		"start_vm=5000: want 0":  {"start_vm": 5000},
	} {
		if err := l.Check(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v: %v, want %q in it", l, err, text)
		}
	}
}

func TestKeptByMachineAndNetwork(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir", "tuned.json")
	m := Mode{Name: "scon-pool+admission"}
	if _, ok, err := Kept(path, "direct", "runc", m); ok || err != nil {
		t.Errorf("without a file: %v, %v", ok, err)
	}
	found := func(network string, limit int) *Found {
		f := newFound(SearchOptions{Options: Options{Launcher: "direct", Runtime: "runc", Modes: []Mode{{Name: network}}}})
		f.Best["bayes"] = Limits{"cgroup": limit}
		return f
	}
	elsewhere := found(m.Name, 9)
	elsewhere.Machine = "another"
	for _, f := range []*Found{found(m.Name, 1), found("scon-nopool+admission", 5), elsewhere, found(m.Name, 3)} {
		if err := f.Keep(path); err != nil {
			t.Fatal(err)
		}
	}
	l, ok, err := Kept(path, "direct", "runc", m)
	if !ok || err != nil || l["cgroup"] != 3 {
		t.Errorf("kept %v, %v, %v; want the latest of this machine and network", l, ok, err)
	}
	if all, err := ReadFound(path); err != nil || len(all) != 3 {
		t.Errorf("%d are kept, %v; want 3", len(all), err)
	}
}

func TestVerdict(t *testing.T) {
	f := &Found{Checks: []LimitsCheck{{Ratios: map[string]bench.Interval{}}}}
	for want, i := range map[string]bench.Interval{
		"Bayesian optimisation beats": {Median: 0.9, Low: 0.8, High: 0.95},
		"Random search beats":         {Median: 1.1, Low: 1.05, High: 1.2},
		"Neither":                     {Median: 1, Low: 0.9, High: 1.1},
	} {
		f.Checks[0].Ratios["bayes/random"] = i
		if got := f.verdict(); !strings.HasPrefix(got, want) {
			t.Errorf("%v: %q, want %q", i, got, want)
		}
	}
}
