package lab

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/netns"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests make network namespaces: run them as root (sudo make test)")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// prefix returns a prefix of the test's own; what stands under it is removed at
// the end.
func prefix(t *testing.T) string {
	t.Helper()
	p := fmt.Sprintf("scon-t%d-%s-", os.Getpid(), strings.ToLower(filepath.Base(t.Name())))
	t.Cleanup(func() {
		if err := Down(p); err != nil {
			t.Error(err)
		}
	})
	return p
}

// mustUp brings a lab up.
func mustUp(t *testing.T, opts Options) *Lab {
	t.Helper()
	l, err := Up(opts)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// nodes returns the nodes under a prefix.
func nodes(t *testing.T, prefix string) []string {
	t.Helper()
	list, err := (&Lab{prefix: prefix}).Nodes()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// output runs a command in a node and returns what it prints.
func output(t *testing.T, l *Lab, node string, argv ...string) string {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := l.Exec(node, cmd); err != nil {
		t.Fatalf("%v in %s: %v\n%s", argv, node, err, &out)
	}
	return out.String()
}

// connect opens a TCP connection from one node to addr, where another node
// listens on port, and returns the client's address as the listener sees it.
func connect(l *Lab, from, to string, port uint16, addr netip.AddrPort) (seen netip.Addr, err error) {
	var ln net.Listener
	err = l.Do(to, func() (err error) {
		ln, err = net.Listen("tcp4", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		return seen, err
	}
	defer ln.Close()
	err = l.Do(from, func() error {
		client, err := net.DialTimeout("tcp4", addr.String(), 2*time.Second)
		if err != nil {
			return err
		}
		return client.Close()
	})
	if err != nil {
		return seen, err
	}
	server, err := ln.Accept()
	if err != nil {
		return seen, err
	}
	defer server.Close()
	return server.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(), nil
}

func TestTraffic(t *testing.T) {
	nat := filepath.Join(t.TempDir(), "nat.rules")
	text := "# a comment first\n*nat\n-A POSTROUTING -s 172.17.0.0/16 -o eth0 -j SNAT --to-source 10.77.0.1\nCOMMIT\n"
	if err := os.WriteFile(nat, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	outside := netip.AddrPortFrom(EdgeAddr, 7000)
	published := netip.AddrPortFrom(DeviceAddr, Publications(2)[0].Device)
	direct := netip.AddrPortFrom(ContainerAddr(2), 7000)
	type path struct {
		name     string
		from, to string
		port     uint16
		addr     netip.AddrPort
		seen     netip.Addr // zero: it must not get through
	}
	out := path{"container to outside", "c1", Edge, 7000, outside, DeviceAddr}
	native := path{"native to outside", "native", Edge, 7000, outside, DeviceAddr}
	between := path{"container to container", "c1", "c2", 7000, direct, ContainerAddr(1)}
	in := path{"outside to published port", Edge, "c2", 80, published, EdgeAddr}
	notPublished := in
	notPublished.seen = netip.Addr{}
	for _, tc := range []struct {
		name, rules string
		paths       []path
	}{
		{"docker", RulesDocker, []path{out, native, between, in}},
		{"none", RulesNone, []path{out, native, between, notPublished}},
		{"file", nat, []path{out, native, between, notPublished}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := mustUp(t, Options{Prefix: prefix(t), Containers: 2, Rules: tc.rules})
			for _, w := range tc.paths {
				seen, err := connect(l, w.from, w.to, w.port, w.addr)
				if w.seen.IsValid() && err != nil {
					t.Errorf("%s: %v", w.name, err)
				}
				if seen != w.seen {
					t.Errorf("%s: seen as %v, want %v", w.name, seen, w.seen)
				}
			}
		})
	}
}

func TestDockerRulesArePublishedInFull(t *testing.T) {
	l := mustUp(t, Options{Prefix: prefix(t), Containers: 3})
	saved := output(t, l, Device, "iptables-nft-save")
	for _, want := range []string{
		":FORWARD DROP",
		"-A FORWARD -j DOCKER-USER",
		"-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP",
		"-A DOCKER ! -i docker0 -p udp -m udp --dport 8003 -j DNAT --to-destination 172.17.0.4:80",
		"-A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp -m tcp --dport 5201 -j ACCEPT",
	} {
		if !strings.Contains(saved, want+"\n") && !strings.Contains(saved, want+" ") {
			t.Errorf("no %q in\n%s", want, saved)
		}
	}
	if n := strings.Count(saved, "-j DNAT"); n != 3*2*2 {
		t.Errorf("%d ports are published, want 2 of each of 3 containers for TCP and UDP", n)
	}
}

func TestSysctlsOfDevice(t *testing.T) {
	l := mustUp(t, Options{Prefix: prefix(t), Containers: 1})
	for name, want := range map[string]string{
		"net/ipv4/ip_forward":                "1",
		"net/ipv4/conf/eth0/rp_filter":       "2",
		"net/ipv4/conf/veth1/rp_filter":      "2",
		"net/ipv6/conf/eth0/disable_ipv6":    "1",
		"net/bridge/bridge-nf-call-iptables": "1",
	} {
		err := l.Do(Device, func() error {
			got, err := os.ReadFile("/proc/sys/" + name)
			if errors.Is(err, os.ErrNotExist) {
				t.Logf("this kernel has no %s", name)
				return nil
			}
			if got := strings.TrimSpace(string(got)); err == nil && got != want {
				t.Errorf("%s = %s, want %s", name, got, want)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestUpAgainKeepsConnections(t *testing.T) {
	opts := Options{Prefix: prefix(t), Containers: 1}
	l := mustUp(t, opts)
	device := inode(t, l.Node(Device))

	var ln net.Listener
	var client net.Conn
	err := errors.Join(
		l.Do(Edge, func() (err error) { ln, err = net.Listen("tcp4", ":7000"); return err }),
		l.Do("c1", func() (err error) { client, err = net.Dial("tcp4", EdgeAddr.String()+":7000"); return err }))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	defer client.Close()
	server, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()

	opts.Containers = 3
	mustUp(t, opts)
	if _, err := client.Write([]byte("still here")); err != nil {
		t.Error(err)
	}
	if err := server.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	if n, err := server.Read(buf); err != nil || string(buf[:n]) != "still here" {
		t.Errorf("read %q, %v after the second Up", buf[:n], err)
	}
	if got := inode(t, l.Node(Device)); got != device {
		t.Errorf("device is another namespace after the second Up")
	}
}

// Nothing is lost while the lab is adjusted: at no time are there no rules.
func TestUpAgainLosesNothing(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "nat.rules")
	text := "*nat\n-A POSTROUTING -s 172.17.0.0/16 -o eth0 -j MASQUERADE\nCOMMIT\n"
	if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	opts := Options{Prefix: prefix(t), Containers: 1}
	l := mustUp(t, opts)
	ping := exec.Command("ping", "-q", "-i", "0.002", "-W", "2", EdgeAddr.String())
	var out bytes.Buffer
	ping.Stdout, ping.Stderr = &out, &out
	if err := l.Start("c1", ping); err != nil {
		t.Fatal(err)
	}
	for _, adjust := range []func(){
		func() {},
		func() { opts.Containers = 3 },
		func() { opts.Rules = RulesNone },
		func() { opts.Rules = rules },
		func() { opts.Rules, opts.Containers = RulesDocker, 1 },
	} {
		adjust()
		mustUp(t, opts)
	}
	if err := errors.Join(ping.Process.Signal(os.Interrupt), ping.Wait()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), " 0% packet loss") {
		t.Errorf("%s", &out)
	}
	if tables := output(t, l, Device, "nft", "list", "tables"); strings.Contains(tables, "scon-lab") {
		t.Errorf("rules of before are left:\n%s", tables)
	}
}

// inode is the inode of a namespace that is there.
func inode(t *testing.T, path string) uint64 {
	t.Helper()
	n, err := netns.Inode(path)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestUpAdjusts(t *testing.T) {
	p := prefix(t)
	for _, containers := range []int{2, 2, 4, 1, 0, 3} {
		l := mustUp(t, Options{Prefix: p, Containers: containers})
		want := []string{Edge, Device}
		for n := 1; n <= containers; n++ {
			want = append(want, Container(n))
		}
		if got := nodes(t, p); !slices.Equal(got, want) {
			t.Errorf("nodes %v, want %v", got, want)
		}
		if got := ports(t, l); len(got) != containers {
			t.Errorf("docker0 has ports %v, want %d", got, containers)
		}
		for n := 1; n <= containers; n++ {
			if _, err := connect(l, Container(n), Edge, 7000, netip.AddrPortFrom(EdgeAddr, 7000)); err != nil {
				t.Errorf("%s of %d to edge: %v", Container(n), containers, err)
			}
		}
	}
}

// ports returns the names of docker0's ports.
func ports(t *testing.T, l *Lab) (names []string) {
	t.Helper()
	err := l.Do(Device, func() error {
		links, err := netlink.LinkList()
		for _, link := range links {
			if link.Attrs().MasterIndex != 0 {
				names = append(names, link.Attrs().Name)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestUpMendsANode(t *testing.T) {
	opts := Options{Prefix: prefix(t), Containers: 2}
	l := mustUp(t, opts)
	// A process keeps the namespace of c2 although its name is gone.
	held, err := netns.Open(l.Node("c2"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := netns.Delete(l.namespace("c2")); err != nil {
		t.Fatal(err)
	}
	mustUp(t, opts)
	if _, err := connect(l, "c2", Edge, 7000, netip.AddrPortFrom(EdgeAddr, 7000)); err != nil {
		t.Errorf("c2 to edge: %v", err)
	}
}

func TestLabsStandSideBySide(t *testing.T) {
	p := prefix(t)
	a := mustUp(t, Options{Prefix: p + "a-", Containers: 1})
	defer a.Close()
	b := mustUp(t, Options{Prefix: p + "b-", Containers: 1})
	defer b.Close()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(p + "a-"); !errors.Is(err, ErrDown) {
		t.Errorf("Open of the closed lab: %v, want ErrDown", err)
	}
	if _, err := connect(b, "c1", Edge, 7000, netip.AddrPortFrom(EdgeAddr, 7000)); err != nil {
		t.Errorf("the other lab: %v", err)
	}
}

func TestCloseCutsHeldNodes(t *testing.T) {
	l := mustUp(t, Options{Prefix: prefix(t), Containers: 1, Uplink: UplinkBridge})
	held, err := netns.Open(l.Node(Device))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	err = netns.Do(fmt.Sprintf("/proc/self/fd/%d", held.Fd()), func() error {
		links, err := net.Interfaces()
		if len(links) != 1 {
			t.Errorf("links %v are left in the closed lab's device, want lo alone", links)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestNoOffload(t *testing.T) {
	l := mustUp(t, Options{Prefix: prefix(t), Containers: 1, NoOffload: true})
	for _, end := range []struct{ node, dev string }{
		{Edge, Uplink}, {Device, Uplink}, {Device, Port(1)}, {"c1", "eth0"},
	} {
		features := output(t, l, end.node, "ethtool", "-k", end.dev)
		for _, feature := range []string{
			"rx-checksumming", "tx-checksumming", "tcp-segmentation-offload",
			"generic-segmentation-offload", "generic-receive-offload",
		} {
			if !strings.Contains(features, feature+": off") {
				t.Errorf("%s of %s: %s is on:\n%s", end.dev, end.node, feature, features)
			}
		}
	}
}

func TestExec(t *testing.T) {
	l := mustUp(t, Options{Prefix: prefix(t), Containers: 1})
	if out := output(t, l, "c1", "ip", "-br", "addr", "show", "eth0"); !strings.Contains(out, "172.17.0.2/16") {
		t.Errorf("eth0 of c1: %s", out)
	}
	var exit *exec.ExitError
	if err := l.Exec("native", exec.Command("sh", "-c", "exit 7")); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("exit 7: %v", err)
	}
	err := l.Exec("c2", exec.Command("true"))
	if err == nil || err.Error() != `the lab has no node "c2", but edge, device, c1` {
		t.Errorf("Exec in a missing node: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Exec("c1", exec.Command("true")); !errors.Is(err, ErrDown) {
		t.Errorf("Exec in a closed lab: %v, want ErrDown", err)
	}
}
