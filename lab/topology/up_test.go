package topology

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/nstest"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests make network namespaces: run them as root (sudo make test)")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

var made atomic.Uint32

// unique returns a name for a topology that no other test uses.
func unique() string { return fmt.Sprintf("topo%d-%d", os.Getpid(), made.Add(1)) }

// up builds a topology. The end of the test removes it and checks that nothing is
// left.
func up(t *testing.T, topology *Topology) *Lab {
	t.Helper()
	o := Options{Dir: filepath.Join(t.TempDir(), "records")}
	check := nstest.Left(t)
	l, err := Up(t.Context(), topology, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		check("scon-" + topology.Name + "-")
		if left, _ := os.ReadDir(filepath.Dir(o.Dir)); len(left) > 0 {
			t.Errorf("%v are left of the records", left)
		}
	})
	return l
}

func line(t *testing.T, n int) *Topology {
	t.Helper()
	topology, err := Line(unique(), n)
	if err != nil {
		t.Fatal(err)
	}
	return topology
}

// receive sends datagrams from a node to an address and returns the TTL of the first
// that arrives, or an error after a timeout.
func receive(l *Lab, from, to string, port uint16) (ttl int, err error) {
	address := netip.AddrPortFrom(l.Addr(to), port)
	var server, client *net.UDPConn
	err = l.Do(to, func() (err error) {
		server, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(address))
		return err
	})
	if err != nil {
		return 0, err
	}
	defer server.Close()
	err = l.Do(from, func() (err error) {
		client, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(address))
		return err
	})
	if err != nil {
		return 0, err
	}
	defer client.Close()
	raw, err := server.SyscallConn()
	if err != nil {
		return 0, err
	}
	if err := receiveTTL(raw); err != nil {
		return 0, err
	}
	if _, err := client.Write([]byte("hello")); err != nil {
		return 0, err
	}
	server.SetReadDeadline(time.Now().Add(10 * time.Second))
	control := make([]byte, 64)
	_, n, _, _, err := server.ReadMsgUDP(make([]byte, 16), control)
	if err != nil {
		return 0, err
	}
	return parseTTL(control[:n])
}

func TestLines(t *testing.T) {
	for _, n := range []int{1, 3, MaxLine} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			l := up(t, line(t, n))
			pairs := [][2]string{{In, Out}, {Out, In}}
			hops := n
			if n >= 60 { // the default TTL expires on the path
				pairs, hops = [][2]string{{In, "n60"}, {Out, "n5"}}, 59
			}
			for _, pair := range pairs {
				ttl, err := receive(l, pair[0], pair[1], 7000)
				if err != nil || ttl != 64-hops {
					t.Errorf("%v: TTL %d, %v; want %d", pair, ttl, err, 64-hops)
				}
			}
		})
	}
}

func TestOnlyOneOfAName(t *testing.T) {
	topology := line(t, 1)
	l := up(t, topology)
	if _, err := Up(t.Context(), topology, Options{Dir: l.dir}); !errors.Is(err, ErrUp) {
		t.Errorf("a second time: %v, want ErrUp", err)
	}
	again, err := Open(topology.Name, l.dir)
	if err != nil || len(again.Nodes) != 3 || again.Links[0].Ends[0] != topology.Links[0].Ends[0] {
		t.Errorf("the record has %+v, %v", again, err)
	}
	labs, err := List(l.dir)
	if err != nil || len(labs) != 1 || labs[0].Name != topology.Name {
		t.Errorf("list %v, %v", labs, err)
	}
	if _, err := receive(l, In, Out, 7000); err != nil {
		t.Errorf("the first is gone: %v", err)
	}
}

// Flows take the paths of the file, not the shortest ones.
func TestFlowsByPort(t *testing.T) {
	topology := mustRead(t, fmt.Sprintf(`name: %s
topology:
  nodes: {a: , b: , c: , d: , e: }
  links:
    - endpoints: ["a:1", "b:1"]
    - endpoints: ["b:2", "c:1"]
    - endpoints: ["c:2", "d:1"]
    - endpoints: ["d:2", "e:1"]
    - endpoints: ["a:2", "e:2"]
flows:
  - {port: 7001, path: [a, c, e]}
  - {port: 7002, path: [d, a]}
  - {port: 7003, path: [d, b, a]}
`, unique()))
	l := up(t, topology)
	for _, tc := range []struct {
		from, to string
		port     uint16
		hops     int
	}{
		{"a", "e", 7000, 0}, // no flow: the shortest path
		{"a", "e", 7001, 3},
		{"d", "a", 7002, 1},
		{"d", "a", 7003, 2},
	} {
		ttl, err := receive(l, tc.from, tc.to, tc.port)
		if err != nil || ttl != 64-tc.hops {
			t.Errorf("%s to %s, port %d: TTL %d, %v; want %d", tc.from, tc.to, tc.port, ttl, err, 64-tc.hops)
		}
	}
}

// host returns a namespace that stands for the host, with a bridge "bridge0" and a
// veth pair "wire0" and "wire1".
func host(t *testing.T) string {
	ns := nstest.New(t)
	nstest.Run(t, ns, `ip link add bridge0 type bridge
		ip link set bridge0 up
		ip link add wire0 type veth peer name wire1
		ip link set wire0 up`)
	return ns
}

func TestMacvlansOfOneDevice(t *testing.T) {
	ns := host(t)
	nstest.Do(t, ns, func() {
		before := nstest.Run(t, ns, "ip -o link show")
		l := up(t, mustRead(t, fmt.Sprintf(`name: %s
topology:
  nodes: {a: , b: }
  links:
    - type: macvlan
      host-interface: wire0
      endpoints: ["a:eth0", "b:eth0"]
      mtu: 1400
`, unique())))
		nstest.Run(t, ns, "ip link set wire1 up")
		if ttl, err := receive(l, "a", "b", 7000); err != nil || ttl != 64 {
			t.Errorf("TTL %d, %v", ttl, err)
		}
		if out := nstest.Run(t, filepath.Base(l.Path("a")), "ip -d link show eth0"); !strings.Contains(out, "macvlan mode bridge") || !strings.Contains(out, "mtu 1400") {
			t.Errorf("the device is %s", out)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		nstest.Run(t, ns, "ip link set wire1 down")
		if after := nstest.Run(t, ns, "ip -o link show"); links(after) != links(before) {
			t.Errorf("the machine's links are\n%s\nbefore:\n%s", after, before)
		}
	})
}

// links returns the device names of ip's list.
func links(list string) string {
	var names []string
	for l := range strings.Lines(list) {
		names = append(names, strings.Fields(l)[1])
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func TestDevicesOfTheMachineComeBack(t *testing.T) {
	ns := host(t)
	nstest.Do(t, ns, func() {
		before := links(nstest.Run(t, ns, "ip -o link show"))
		l := up(t, mustRead(t, fmt.Sprintf(`name: %s
topology:
  nodes: {a: , b: }
  links:
    - type: host-device
      endpoints:
        - {node: a, interface: eth0, host-interface: wire0}
        - {node: b, interface: eth0, host-interface: wire1}
      mtu: 1400
`, unique())))
		if ttl, err := receive(l, "a", "b", 7000); err != nil || ttl != 64 {
			t.Errorf("TTL %d, %v", ttl, err)
		}
		if now := links(nstest.Run(t, ns, "ip -o link show")); strings.Contains(now, "wire") {
			t.Errorf("the machine still has %s", now)
		}
		// Another process takes it down, by the record.
		other, err := Open(l.Name, l.dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
		if now := links(nstest.Run(t, ns, "ip -o link show")); now != before {
			t.Errorf("the machine has %s, before %s", now, before)
		}
		if out := nstest.Run(t, ns, "ip -o link show wire0"); !strings.Contains(out, ",UP") || !strings.Contains(out, " mtu 1500 ") {
			t.Errorf("wire0 was up with an MTU of 1500; it is %s", out)
		}
		if out := nstest.Run(t, ns, "ip -o link show wire1"); strings.Contains(out, ",UP") {
			t.Errorf("wire1 was down; it is %s", out)
		}
	})
}

// borrowed returns a topology that has taken wire0 of the host. The caller is in the
// host's namespace.
func borrowed(t *testing.T) *Lab {
	return up(t, mustRead(t, fmt.Sprintf(`name: %s
topology:
  nodes: {a: }
  links:
    - {type: host-device, endpoint: {node: a, interface: eth0, host-interface: wire0}}
`, unique())))
}

// A device is moved back after a crash at any step of the move.
func TestDevicesComeBackFromAnywhere(t *testing.T) {
	for _, tc := range []struct {
		name string
		// script brings wire0 into the state after the step; NODE, HOST and BETWEEN are
		// placeholders for names.
		script string
		gone   bool
	}{
		{name: "switched off", script: "ip -n NODE link set eth0 netns HOST name wire0"},
		{name: "renamed at the machine", script: "ip -n NODE link set eth0 netns HOST name BETWEEN"},
		{name: "moved", script: "ip -n NODE link set eth0 down\nip -n NODE link set eth0 name BETWEEN"},
		{name: "removed", script: "ip -n NODE link delete eth0", gone: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ns := host(t)
			nstest.Do(t, ns, func() {
				before := links(nstest.Run(t, ns, "ip -o link show"))
				l := borrowed(t)
				nstest.Run(t, ns, strings.NewReplacer("NODE", l.namespace("a"), "HOST", ns, "BETWEEN", l.moves[0].Between).Replace(tc.script))
				other, err := Open(l.Name, l.dir)
				if err != nil {
					t.Fatal(err)
				}
				if err := other.Close(); err != nil {
					t.Fatal(err)
				}
				if tc.gone {
					return
				}
				if now := links(nstest.Run(t, ns, "ip -o link show")); now != before {
					t.Errorf("the machine has %s, before %s", now, before)
				}
				if out := nstest.Run(t, ns, "ip -o link show wire0"); !strings.Contains(out, ",UP") {
					t.Errorf("wire0 was up; it is %s", out)
				}
			})
		})
	}
}

// A device whose name is taken stays in the node until another Close.
func TestDeviceThatCannotComeBack(t *testing.T) {
	ns := host(t)
	nstest.Do(t, ns, func() {
		l := borrowed(t)
		nstest.Run(t, ns, "ip link add wire0 type bridge")
		for range 2 {
			if err := l.Close(); err == nil || !strings.Contains(err.Error(), "bring wire0 back: rename") {
				t.Errorf("error %v", err)
			}
		}
		nstest.Run(t, ns, "ip link delete wire0")
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		nstest.Run(t, ns, "ip link show wire0")
	})
}

// Up and Close leave namespaces of others alone.
func TestUpLeavesNamespacesOfOthers(t *testing.T) {
	topology := line(t, 1)
	other := "scon-" + topology.Name + "-n1"
	if err := netns.Create(other); err != nil {
		t.Fatal(err)
	}
	defer netns.Delete(other)
	dir := filepath.Join(t.TempDir(), "records")
	_, err := Up(t.Context(), topology, Options{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "node n1: namespace "+other+" is another's already") {
		t.Errorf("error %v", err)
	}
	if _, err := netns.Inode(other); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a record is left")
	}
}

// Without an engine Up builds nothing, and Close removes the record of a lab whose
// engine is gone.
func TestContainersWithoutDocker(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	dir := filepath.Join(t.TempDir(), "records")
	topology := &Topology{Name: unique(), Nodes: []Node{{Name: "a", Kind: Docker, Image: "box"}}}
	_, err := Up(t.Context(), topology, Options{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "need docker, which is not in PATH") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a record is left")
	}
	l := &Lab{Topology: topology, dir: dir}
	if err := l.claim(); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the record stays")
	}
}

func TestUpRefusesCPUsThatAreNotThere(t *testing.T) {
	topology := line(t, 1)
	topology.Nodes[1].CPUs = []int{0, 8000}
	_, err := Up(t.Context(), topology, Options{Dir: filepath.Join(t.TempDir(), "records")})
	if err == nil || !strings.Contains(err.Error(), "node n1: its cpu-set has CPU 8000, this machine has 0") {
		t.Errorf("error %v", err)
	}
}

func TestUpRefuses(t *testing.T) {
	ns := host(t)
	nstest.Run(t, ns, `ip address add 192.0.2.1/24 dev wire0
		ip link set wire1 master bridge0`)
	for _, tc := range []struct{ name, link, want string }{
		{"no such device", `{type: host-device, endpoint: "a:e", host-interface: nosuch}`, `this machine has no device "nosuch"`},
		{"no such parent", `{type: macvlan, endpoint: "a:e", host-interface: nosuch}`, `this machine has no device "nosuch"`},
		{"device in use", `{type: host-device, endpoint: "a:e", host-interface: wire0}`, "wire0 is in use with the address 192.0.2.1/24"},
		{"port of a bridge", `{type: host-device, endpoint: "a:e", host-interface: wire1}`, "wire1 is a port of a bridge"},
		{"no VF", `{type: sriov, endpoint: {node: a, interface: e, vf: 0}, host-interface: lo}`, "lo has no virtual functions"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "records")
			name := unique()
			var err error
			nstest.Do(t, ns, func() {
				_, err = Up(t.Context(), mustRead(t, "name: "+name+"\ntopology: {nodes: {a: }, links: ["+tc.link+"]}"), Options{Dir: dir})
			})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
			if _, err := os.Stat(dir); err == nil {
				t.Error("a record is left")
			}
			if _, err := netns.Inode("scon-" + name + "-a"); err == nil {
				t.Error("a namespace is left")
			}
		})
	}
}

func TestUpStopsOnCancel(t *testing.T) {
	topology := line(t, 8)
	dir := filepath.Join(t.TempDir(), "records")
	ctx, cancel := context.WithCancel(t.Context())
	check := nstest.Left(t)
	_, err := Up(ctx, topology, Options{Dir: dir, Progress: func(done, total int) {
		if total != 10+9 {
			t.Errorf("%d steps", total)
		}
		if done == 12 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	check("scon-" + topology.Name + "-")
}

// A process that stays in a node keeps its namespace, without links.
func TestCloseLeavesProcessesWithoutLinks(t *testing.T) {
	l := up(t, line(t, 1))
	sleep := exec.Command("sleep", "1000")
	if err := l.Do("n1", sleep.Start); err != nil {
		t.Fatal(err)
	}
	defer func() {
		sleep.Process.Kill()
		sleep.Wait()
	}()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	err := netns.Do(fmt.Sprintf("/proc/%d/ns/net", sleep.Process.Pid), func() error {
		links, err := netlink.LinkList()
		if len(links) != 1 {
			t.Errorf("the process has %d links", len(links))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestNetem(t *testing.T) {
	topology := line(t, 1)
	topology.Links[0].Delay, topology.Links[0].Jitter, topology.Links[0].Loss = 20*time.Millisecond, time.Millisecond, 10
	dir := filepath.Join(t.TempDir(), "records")
	l, err := Up(t.Context(), topology, Options{Dir: dir})
	if errors.Is(err, ErrNoNetem) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, node := range []string{In, "n1"} {
		out := nstest.Run(t, filepath.Base(l.Path(node)), "tc qdisc show")
		if !strings.Contains(out, "qdisc netem 1: dev ") || !strings.Contains(out, " limit 4194304 delay 20ms  1ms loss 10%") {
			t.Errorf("%s has %s", node, out)
		}
	}
}

func TestEnterTakesTheCPUs(t *testing.T) {
	topology := line(t, 1)
	topology.Nodes[1].CPUs = []int{0}
	l := up(t, topology)
	out, err := inThread(func() (string, error) {
		if err := l.Enter("n1"); err != nil {
			return "", err
		}
		status, err := os.ReadFile("/proc/thread-self/status")
		return string(status), err
	})
	if err != nil || !strings.Contains(out, "Cpus_allowed_list:\t0\n") {
		t.Errorf("%v: %s", err, out)
	}
	if err := l.Enter("nosuch"); err == nil || !strings.Contains(err.Error(), `has no node "nosuch", but in, n1, out`) {
		t.Errorf("error %v", err)
	}
}
