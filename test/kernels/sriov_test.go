package kernels

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/pin"
	"github.com/scon-project/scon/internal/vm"
)

//go:embed sriov.sh
var sriovScript string

// sriovNodes are the CPUs of the guest's NUMA nodes, as many at the cards' nodes
// as the paper's host has.
var sriovNodes = []string{"0", "1-8", "9", "10-17"}

// sriovHardware is the paper's host: four ports that have virtual functions, two
// at node 1 and two at node 3, and two devices to send and receive by.
//
//	cable 1: generator, port 0    cable 2: port 1, port 2    cable 3: port 3, receiver
func sriovHardware() []string {
	hw := []string{"-M", "q35", "-smp", "18,sockets=18,cores=1,threads=1"}
	for node, cpus := range sriovNodes {
		hw = append(hw, "-object", fmt.Sprintf("memory-backend-ram,id=memory%d,size=512M", node),
			"-numa", fmt.Sprintf("node,nodeid=%d,cpus=%s,memdev=memory%d", node, cpus, node))
	}
	for _, node := range []int{1, 3} {
		hw = append(hw, "-device", fmt.Sprintf("pxb-pcie,id=node%d,bus=pcie.0,bus_nr=%d,numa_node=%d", node, 64*node, node))
	}
	for port, at := range []struct{ node, cable int }{{1, 1}, {1, 2}, {3, 2}, {3, 3}} {
		hw = append(hw,
			"-device", fmt.Sprintf("pcie-root-port,id=root%d,bus=node%d,addr=%d,chassis=%d,slot=%d", port, at.node, port, port, port),
			"-netdev", fmt.Sprintf("hubport,id=port%d,hubid=%d", port, at.cable),
			"-device", fmt.Sprintf("igb,bus=root%d,netdev=port%d,romfile=,mac=02:00:00:00:00:0%d", port, port, port))
	}
	for end, cable := range []int{1, 3} {
		hw = append(hw, "-netdev", fmt.Sprintf("hubport,id=end%d,hubid=%d", end, cable),
			"-device", fmt.Sprintf("virtio-net-pci,bus=pcie.0,netdev=end%d,romfile=,mac=02:00:00:00:00:1%d", end, end))
	}
	return hw
}

// pinned finds what scon pin status printed for a policy.
var pinned = regexp.MustCompile(`(?s)\n=== (\w+)\n(\{.*?\n\})\n===\n`)

// The paper's Fig. 2: three containers in line over virtual functions of real
// ports, flows that enter and leave anywhere, and interrupts on a core or a NUMA
// node each.
func TestSRIOV(t *testing.T) {
	if !*full {
		t.Skip("the full form: make test-kernels")
	}
	start := time.Now()
	r, err := vm.Run(t.Context(), vm.Options{
		Kernel: "6.12", Arch: "amd64", CPUs: 18, Memory: 2048, Hardware: sriovHardware(),
		Files: map[string]string{"/opt/scon": build(t, "amd64", "scon")}, Command: sriovScript, Timeout: 20 * time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d s, boot included", int(time.Since(start).Seconds()))
	if r.Complaints != "" {
		t.Errorf("the kernel complains:\n%s", r.Complaints)
	}
	if r.ExitCode != 0 {
		t.Fatalf("exit status %d:\n%s", r.ExitCode, r.Output)
	}
	flows := "flow 7000: 200 of 200\nflow 7001: 200 of 200\nflow 7002: 200 of 200\n"
	for _, want := range []string{
		flows + "in another VLAN, flow 7000: 0 of 200\n" + flows + "=== core\n",
		"\n===\n" + flows + "=== numa\n",
		"settings are as they were.\nas before\n",
	} {
		if !strings.Contains(r.Output, want) {
			t.Errorf("the output lacks %q:\n%s", want, r.Output)
		}
	}
	documents := make(map[string]pin.Status)
	for _, m := range pinned.FindAllStringSubmatch(r.Output, -1) {
		var s pin.Status
		if err := json.Unmarshal([]byte(m[2]), &s); err != nil {
			t.Fatalf("reading what scon printed: %v:\n%s", err, m[2])
		}
		documents[m[1]] = s
	}
	for _, policy := range []string{"core", "numa"} {
		s := documents[policy]
		if s.Differs != 0 {
			t.Errorf("%s: %d settings differ: %+v", policy, s.Differs, s)
		}
		checkVectors(t, policy, s)
	}
}

// queueVector is the interrupt of a queue of a port or of a virtual function.
var queueVector = regexp.MustCompile(`-[rt]x-0$`)

// atNode is the node of each port, and of the devices in containers.
var atNode = map[string]int{"port0": 1, "port1": 1, "in": 1, "right": 1, "port2": 3, "port3": 3, "left": 3, "eg": 3}

// checkVectors looks at where the kernel delivers the queues' interrupts: at the
// card's node; under core each device's on a CPU of its own.
func checkVectors(t *testing.T, policy string, s pin.Status) {
	t.Helper()
	devices := make(map[string]string) // by the CPU
	queues := 0
	for _, set := range s.Settings {
		node, ours := atNode[set.Device]
		if set.Kind != "irq" || !ours || !queueVector.MatchString(set.Owner) {
			continue
		}
		queues++
		if list := sriovNodes[node]; policy == "numa" && set.Is != list {
			t.Errorf("numa: %s of %s may come to %s, want %s", set.Owner, set.Netns, set.Is, list)
		}
		var cpu, first, last int
		if _, err := fmt.Sscanf(set.Effective+" "+sriovNodes[node], "%d %d-%d", &cpu, &first, &last); err != nil {
			t.Fatalf("%s: %s comes to CPU %q: %v", policy, set.Owner, set.Effective, err)
		}
		if cpu < first || cpu > last {
			t.Errorf("%s: %s of %s comes to CPU %d, which is not at node %d", policy, set.Owner, set.Netns, cpu, node)
		}
		device := set.Netns + " " + set.Device
		if other, taken := devices[set.Effective]; policy == "core" && taken && other != device {
			t.Errorf("core: CPU %d has %s and %s", cpu, other, device)
		}
		devices[set.Effective] = device
	}
	if queues != 2*(4+10) {
		t.Errorf("%s: %d interrupts of queues, want two of each of 4 ports and 10 functions", policy, queues)
	}
}
