package pin

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/nstest"
)

// pair is a machine that has only two namespaces, with a veth between them:
// nothing of this machine's own is read or changed.
//
//	left (p0) ==== right (p0)
func pair(t testing.TB) *Host {
	t.Helper()
	left, right := nstest.New(t), nstest.New(t)
	nstest.Run(t, left, fmt.Sprintf(`
		ip link add p0 type veth peer name p0 netns %s
		ip link set p0 up
	`, right))
	nstest.Run(t, right, "ip link set p0 up")
	return ownHost(t, t.TempDir(), left, right)
}

func ownHost(t testing.TB, state string, namespaces ...string) *Host {
	t.Helper()
	h := ThisHost(nil)
	h.State, h.OnlyNetns = state, true
	for _, ns := range namespaces {
		h.Namespaces = append(h.Namespaces, Namespace{Path: netns.Path(ns)})
	}
	return h
}

// inScratch calls fn in a namespace without devices, so that those of this
// machine are not seen.
func inScratch(t testing.TB, fn func()) {
	t.Helper()
	if err := netns.Scratch(func() error { fn(); return nil }); err != nil {
		t.Fatal(err)
	}
}

// state is what the kernel has of the pair, in its own words.
func (h *Host) states(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	for _, ns := range h.Namespaces {
		b.WriteString(nstest.Run(t, ns.Path, "ethtool -k p0"))
		tree, err := h.sysfs(ns.Path)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"threaded", "queues/rx-0/rps_cpus"} {
			value, err := readFile(tree.dir + "/class/net/p0/" + name)
			fmt.Fprintf(&b, "%s %s %v\n", name, value, err)
		}
		tree.close()
		threads, err := h.Kernel.Threads(ns.Path, "p0")
		fmt.Fprintf(&b, "%q %v\n", threadsText(threads), err)
	}
	return b.String()
}

func planned(t testing.TB, h *Host, o Options) Plan {
	t.Helper()
	p, err := New(capture(t, h), o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The devices of a pair find each other, though they have one name and one
// number.
func TestCapturePair(t *testing.T) {
	h := pair(t)
	inScratch(t, func() {
		s := capture(t, h)
		if len(s.Devices) != 2 {
			t.Fatalf("devices: %+v", s.Devices)
		}
		for i, d := range s.Devices {
			other := s.Devices[1-i]
			if d.Veth == nil || d.Veth.Peer != "p0" || d.Veth.PeerNetns != other.Netns || d.Veth.PeerOwner != other.Owner || !d.Veth.PeerTSO {
				t.Errorf("device %+v with %+v", d, d.Veth)
			}
			if len(d.RX) == 0 || d.RX[0].CPUs == nil || d.Threaded == nil {
				t.Errorf("queues %+v, threaded %v", d.RX, d.Threaded)
			}
		}
	})
}

// applied applies a plan to a pair, calls look, and fails unless everything is as it was
// after it was restored.
func applied(t *testing.T, h *Host, o Options, look func()) {
	t.Helper()
	before := h.states(t)
	inScratch(t, func() {
		if _, err := h.Apply(planned(t, h, o)); err != nil {
			t.Fatal(err)
		}
		status, err := h.Inspect()
		if err != nil || status.Differs > 0 {
			t.Errorf("status %+v, %v", status, err)
		}
		look()
		if _, err := h.Restore(); err != nil {
			t.Fatal(err)
		}
	})
	if after := h.states(t); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// Threads poll a veth only with GRO here and no TSO there: the plan sets both,
// the kernel then has threads, of the wanted priority and on the wanted CPUs.
func TestThreadedVeth(t *testing.T) {
	if !nstest.HasMachinePIDs(t) {
		t.Skip("this PID namespace does not have the kernel's threads")
	}
	h := pair(t)
	nstest.Run(t, h.Namespaces[0].Path, "ethtool -K p0 tx-tcp6-segmentation off")
	applied(t, h, Options{Policy: Single, Steer: Threaded}, func() {
		for _, ns := range h.Namespaces {
			threads, err := h.Kernel.Threads(ns.Path, "p0")
			if err != nil || len(threads) != 1 || len(threads[0].CPUs) != 1 || threads[0].Priority != fifo {
				t.Errorf("threads %+v, %v", threads, err)
			}
			features, err := h.Kernel.Features(ns.Path, "p0")
			if err != nil || !features[featureOf[kindGRO]] || tsoOn(features) != "off" {
				t.Errorf("GRO %v, TSO %s, %v", features[featureOf[kindGRO]], tsoOn(features), err)
			}
		}
	})
}

// A veth merges datagrams with its GRO only: the plan sets both, and restores both.
func TestMergeUDP(t *testing.T) {
	h := pair(t)
	applied(t, h, Options{Policy: None, Steer: Direct, MergeUDP: true}, func() {
		for _, ns := range h.Namespaces {
			features, err := h.Kernel.Features(ns.Path, "p0")
			if err != nil || !features["rx-gro"] || !features["rx-udp-gro-forwarding"] {
				t.Errorf("features %v, %v", features, err)
			}
		}
	})
}

// Without GRO "threaded" is refused; with a peer that has TSO it changes
// nothing: what the plan says of it.
func TestThreadedAloneHasNoEffect(t *testing.T) {
	if !nstest.HasMachinePIDs(t) {
		t.Skip("this PID namespace does not have the kernel's threads")
	}
	h := pair(t)
	left, right := h.Namespaces[0].Path, h.Namespaces[1].Path
	nstest.Run(t, left, "ip address add 10.9.0.1/24 dev p0")
	nstest.Run(t, right, "ip address add 10.9.0.2/24 dev p0")
	polled := func() bool {
		t.Helper()
		count := func() (n int) {
			threads, err := h.Kernel.Threads(right, "p0")
			if err != nil {
				t.Fatal(err)
			}
			for _, thread := range threads {
				n += switches(t, thread.PID)
			}
			return n
		}
		before := count()
		nstest.Run(t, left, "ping -q -c 100 -i 0.002 10.9.0.2")
		// To begin, a thread is switched to once or twice.
		return count() >= before+5
	}
	tree, err := h.sysfs(right)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.close()
	threaded := tree.dir + "/class/net/p0/threaded"
	if err := writeFile(threaded, "1"); err == nil {
		t.Error("the kernel has threads for a veth without GRO")
	}
	nstest.Run(t, right, "ethtool -K p0 gro on")
	if err := writeFile(threaded, "1"); err != nil {
		t.Fatal(err)
	}
	if polled() {
		t.Error("threads poll a veth whose peer has TSO")
	}
	nstest.Run(t, left, "ethtool -K p0 tso off")
	if !polled() {
		t.Error("with both, nothing polls")
	}
}

// switches is how often a thread was given a CPU and gave it back.
func switches(t testing.TB, pid int) (n int) {
	t.Helper()
	status, err := readFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(status, "\nvoluntary_ctxt_switches:")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// RPS, with its mask read back.
func TestRPSOfVeth(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("with one CPU there is nobody to hand packets to")
	}
	h := pair(t)
	before := h.states(t)
	inScratch(t, func() {
		p := planned(t, h, Options{Policy: None, Steer: RPS, Devices: []string{"p0"}})
		results, err := h.Apply(p)
		if err != nil || len(results) < 2 {
			t.Fatalf("%+v, %v", results, err)
		}
		for _, r := range results {
			if now, err := h.get(r.Setting); err != nil || now != r.Want || now == "" {
				t.Errorf("%s in %s is %q, %v; want %q", r.Place(), r.Netns, now, err, r.Want)
			}
		}
		if _, err := h.Restore(); err != nil {
			t.Fatal(err)
		}
	})
	if after := h.states(t); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// killedPairEnv is as killedEnv, with two namespaces: "3 STATE LEFT RIGHT".
const killedPairEnv = "SCON_TEST_PIN_KILLED_PAIR"

// TestKilledPairChild is the process that TestKillWithThreads kills.
func TestKilledPairChild(t *testing.T) {
	order := os.Getenv(killedPairEnv)
	if order == "" {
		return
	}
	var step int
	var state, left, right string
	if _, err := fmt.Sscan(order, &step, &state, &left, &right); err != nil {
		t.Fatal(err)
	}
	h := ownHost(t, state, left, right)
	n := 0
	h.fault = func(string) error {
		if n++; n-1 == step {
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			select {}
		}
		return nil
	}
	inScratch(t, func() {
		p := planned(t, h, Options{Policy: Core, Steer: Threaded})
		_, _ = h.Apply(p)
	})
	t.Fatal("there is no such step")
}

// The same with a real kernel: threads, features, and a kill at each step.
func TestKillWithThreads(t *testing.T) {
	h := pair(t)
	steps := 0
	h.fault = func(string) error { steps++; return nil }
	inScratch(t, func() {
		if _, err := h.Apply(planned(t, h, Options{Policy: Core, Steer: Threaded})); err != nil {
			t.Fatal(err)
		}
		h.fault = nil
		if _, err := h.Restore(); err != nil {
			t.Fatal(err)
		}
	})
	before := h.states(t)
	for step := range steps {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledPairChild$")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s %s %s", killedPairEnv, step, h.State, h.Namespaces[0].Path, h.Namespaces[1].Path))
		out, err := cmd.CombinedOutput()
		status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if err == nil || !ok || status.Signal() != syscall.SIGKILL {
			t.Fatalf("not killed at step %d: %v: %s", step, err, out)
		}
		inScratch(t, func() {
			if _, err := h.Restore(); err != nil {
				t.Fatal(err)
			}
		})
		if after := h.states(t); after != before {
			t.Errorf("step %d: before:\n%s\nafter:\n%s", step, before, after)
		}
	}
}

// A namespace that is gone takes its settings along.
func TestRestoreWithoutNamespace(t *testing.T) {
	h := pair(t)
	inScratch(t, func() {
		if _, err := h.Apply(planned(t, h, Options{Policy: Single, Steer: RPS})); err != nil {
			t.Fatal(err)
		}
	})
	if err := netns.Delete(strings.TrimPrefix(h.Namespaces[1].Path, "/run/netns/")); err != nil {
		t.Fatal(err)
	}
	inScratch(t, func() {
		list, err := h.Restore()
		if err != nil || len(list) < 2 {
			t.Fatalf("%+v, %v", list, err)
		}
		for _, r := range list {
			if r.Netns == h.Namespaces[1].Path && r.Left == "" {
				t.Errorf("%s was restored", r.Place())
			}
		}
	})
}
