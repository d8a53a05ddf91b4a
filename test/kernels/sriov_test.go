package kernels

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/pin"
	"github.com/scon-project/scon/test/bed/vm"
)

//go:embed sriov.sh
var sriovScript string

// sriovTopology is Fig. 2 of "Applicability of Hardware-Supported Containers in
// Low-Latency Networking".
const sriovTopology = "sriov.yaml"

// sriovNodes are the CPUs of the guest's NUMA nodes. The nodes of the containers' cards
// have as many CPUs as those of the paper's host.
var sriovNodes = []string{"0", "1-8", "9", "10-17"}

// sriovPorts are the node of each port's card, and the cables between ports.
// All ports have virtual functions.
var sriovPorts = []struct{ node, cable int }{{1, 1}, {1, 2}, {3, 2}, {3, 3}, {0, 1}, {2, 3}}

// sriovHardware combines the paper's three hosts in one.
func sriovHardware() []string {
	hw := []string{"-M", "q35", "-smp", "18,sockets=18,cores=1,threads=1"}
	for node, cpus := range sriovNodes {
		hw = append(hw, "-object", fmt.Sprintf("memory-backend-ram,id=memory%d,size=512M", node),
			"-numa", fmt.Sprintf("node,nodeid=%d,cpus=%s,memdev=memory%d", node, cpus, node),
			"-device", fmt.Sprintf("pxb-pcie,id=node%d,bus=pcie.0,bus_nr=%d,numa_node=%d", node, 64*node+32, node))
	}
	for port, at := range sriovPorts {
		hw = append(hw,
			"-device", fmt.Sprintf("pcie-root-port,id=root%d,bus=node%d,addr=%d,chassis=%d,slot=%d", port, at.node, port, port, port),
			"-netdev", fmt.Sprintf("hubport,id=port%d,hubid=%d", port, at.cable),
			"-device", fmt.Sprintf("igb,bus=root%d,netdev=port%d,romfile=,mac=02:00:00:00:00:0%d", port, port, port))
	}
	return hw
}

// document matches a JSON document of scon: a policy's status or latencies.
var document = regexp.MustCompile(`(?s)\n=== (\w+)\n(\{.*?\n\})\n===\n`)

// Fig. 2 of "Applicability of Hardware-Supported Containers in Low-Latency Networking"
// from a topology file: three containers in line over virtual functions of real ports,
// flows with any entry and exit, links with delay and loss, interrupts bound to a core
// or a NUMA node each, and all settings restored at the end.
func TestSRIOV(t *testing.T) {
	if !*full {
		t.Skip("the full form: make test-kernels")
	}
	start := time.Now()
	files := programs(t, "amd64")
	files["/opt/sriov.yaml"] = sriovTopology
	r, err := vm.Run(t.Context(), vm.Options{
		Kernel: "6.12", Arch: "amd64", CPUs: 18, Memory: 2048, Hardware: sriovHardware(),
		Files:   files,
		Command: sriovScript, Timeout: 30 * time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d s, boot included", int(time.Since(start).Seconds()))
	if r.Complaints != "" {
		t.Errorf("warnings of the kernel:\n%s", r.Complaints)
	}
	if r.ExitCode != 0 {
		t.Fatalf("exit status %d:\n%s", r.ExitCode, r.Output)
	}
	flows := "flow 7000: 200 of 200\nflow 7001: 200 of 200\nflow 7002: 200 of 200\n"
	for _, want := range []string{
		flows + "loses: ",
		"in another VLAN, flow 7000: 0 of 200\nlinks as before\n" + flows + "=== core\n",
		"\n===\n" + flows + "=== numa\n",
		"settings are as they were.\naffinities as before\nlinks as before, again\n",
		"links as before, again\n15 settings are as they were.\n=== latency\n",
		"\n===\nlinks as before, at last\n",
	} {
		if !strings.Contains(r.Output, want) {
			t.Errorf("the output lacks %q:\n%s", want, r.Output)
		}
	}
	checkImpaired(t, r.Output)
	documents := make(map[string]string)
	for _, m := range document.FindAllStringSubmatch(r.Output, -1) {
		documents[m[1]] = m[2]
	}
	for _, policy := range []string{"core", "numa"} {
		var s pin.Status
		if err := json.Unmarshal([]byte(documents[policy]), &s); err != nil {
			t.Fatalf("parse scon's output: %v:\n%s", err, documents[policy])
		}
		if s.Differs != 0 {
			t.Errorf("%s: %d settings differ: %+v", policy, s.Differs, s)
		}
		checkVectors(t, policy, s)
	}
	var l latencies
	if err := json.Unmarshal([]byte(documents["latency"]), &l); err != nil {
		t.Fatalf("parse scon's output: %v:\n%s", err, documents["latency"])
	}
	checkLatencies(t, l)
}

// delays matches the round-trip times of a link without and with delay in milliseconds,
// losing the number of packets that arrived over the link with loss.
var (
	delays = regexp.MustCompile(`\nmilliseconds: ([0-9.]+) without delay, ([0-9.]+) with\n`)
	losing = regexp.MustCompile(`\nloses: flow 7003: (\d+) of 200\n`)
)

// checkImpaired checks netem's effect on two links: 30 ms in each direction of
// one, a loss of one packet in ten on the other.
func checkImpaired(t *testing.T, out string) {
	t.Helper()
	if m := delays.FindStringSubmatch(out); m == nil {
		t.Errorf("no delays:\n%s", out)
	} else {
		plain, _ := strconv.ParseFloat(m[1], 64)
		delayed, _ := strconv.ParseFloat(m[2], 64)
		if delayed < 60 || plain >= delayed {
			t.Errorf("%v ms with delay, %v ms without: want 60 ms at least", delayed, plain)
		}
	}
	if m := losing.FindStringSubmatch(out); m == nil {
		t.Errorf("no losses:\n%s", out)
	} else if n, _ := strconv.Atoi(m[1]); n < 100 || n > 199 {
		t.Errorf("%d of 200 packets arrived, want about 180", n)
	}
}

// latencies are what this test reads of the output of scon latency.
type latencies struct {
	Modes   map[string]map[string][]float64
	Details map[string]*struct {
		Rounds []struct{ Arrived, Due int }
	}
}

// checkLatencies checks the flows' latencies: one flow loses packets, and no
// packet over the delayed link arrives too early.
func checkLatencies(t *testing.T, r latencies) {
	t.Helper()
	for _, mode := range []string{"port7000", "port7001", "port7002", "port7003"} {
		d := r.Details[mode]
		if d == nil || len(d.Rounds) != 1 {
			t.Errorf("%s was not measured: %+v", mode, d)
			continue
		}
		// A process that waits long for a CPU of this machine skips packets, or sends
		// some late.
		round, most := d.Rounds[0], 200
		if mode == "port7003" {
			most = 199
		}
		if round.Arrived < 50 || round.Arrived > most || round.Due != 200 {
			t.Errorf("%s: %+v", mode, round)
		}
		if p50 := r.Modes[mode]["wire_p50_us"]; mode == "port7000" && (len(p50) != 1 || p50[0] < 30_000) {
			t.Errorf("%s: a median of %v us, want 30 ms", mode, p50)
		}
	}
}

// queueVector matches the interrupt of a queue of a port or virtual function.
var queueVector = regexp.MustCompile(`-[rt]x-0$`)

// deviceNode is the NUMA node of each port and of the containers' virtual
// functions, all but two of which are below VLAN devices.
var deviceNode = map[string]int{
	"port0": 1, "port1": 1, "port2": 3, "port3": 3, "port4": 0, "port5": 2,
	"vf-to0": 0, "vf-to1": 0, "vf-to2": 0, "vf-in": 1, "right": 1, "vf-right": 1,
	"left": 3, "vf-left": 3, "vf-eg": 3, "vf-from0": 2, "vf-from1": 2, "vf-from2": 2,
}

// checkVectors checks that the kernel delivers the queues' interrupts at the card's
// node and, with policy core, each device's at its own CPU if there are enough.
func checkVectors(t *testing.T, policy string, s pin.Status) {
	t.Helper()
	devices := make(map[string]string) // by the CPU
	queues := 0
	for _, set := range s.Settings {
		node, ours := deviceNode[set.Device]
		if set.Kind != "irq" || !ours || !queueVector.MatchString(set.Owner) {
			continue
		}
		queues++
		if list := sriovNodes[node]; policy == "numa" && set.Is != list {
			t.Errorf("numa: the affinity of %s of %s is %s, want %s", set.Owner, set.Netns, set.Is, list)
		}
		cpu, err := strconv.Atoi(set.Effective)
		if err != nil {
			t.Fatalf("%s: the effective affinity of %s is CPU %q: %v", policy, set.Owner, set.Effective, err)
		}
		first, last, several := strings.Cut(sriovNodes[node], "-")
		low, _ := strconv.Atoi(first)
		high := low
		if several {
			high, _ = strconv.Atoi(last)
		}
		if cpu < low || cpu > high {
			t.Errorf("%s: %s of %s is delivered to CPU %d, which is not at node %d", policy, set.Owner, set.Netns, cpu, node)
		}
		device := set.Netns + " " + set.Device
		if other, taken := devices[set.Effective]; policy == "core" && several && taken && other != device {
			t.Errorf("core: CPU %d has %s and %s", cpu, other, device)
		}
		devices[set.Effective] = device
	}
	if queues != 2*(6+16) {
		t.Errorf("%s: %d interrupts of queues, want two of each of 6 ports and 16 functions", policy, queues)
	}
}
