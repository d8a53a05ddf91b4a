package topology

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func read(text string) (*Topology, error) {
	return Read("f.yaml", strings.NewReader(text))
}

func mustRead(t *testing.T, text string) *Topology {
	t.Helper()
	topology, err := read(text)
	if err != nil {
		t.Fatal(err)
	}
	return topology
}

const ring = `name: ring
topology:
  nodes:
    a: {kind: netns}
    b:
    c: {cpu-set: "0-1,3"}
    d: {kind: linux, image: busybox, cmd: sleep 1000, cpu-set: 1}
  links:
    - endpoints: ["a:eth1", "b:eth1"]
    - endpoints: ["b:eth2", "c:eth1"]
      delay: 10ms
      jitter: 1.5ms
      loss: 0.5
      mtu: 1400
    - type: veth
      endpoints:
        - {node: c, interface: eth2, ipv4: 192.0.2.1/30}
        - {node: a, interface: eth2, ipv4: 192.0.2.2/30}
    - type: macvlan
      endpoint: {node: d, interface: out}
      host-interface: eth0
      mode: bridge
    - type: sriov
      vlan: 101
      endpoints:
        - {node: a, interface: wire, host-interface: port1, vf: 0}
        - {node: d, interface: wire, host-interface: port2, vf: 3}
    - type: host-device
      endpoint: {node: b, interface: phy, host-interface: eth7}
flows:
  - {port: 7000, path: [a, c]}
  - {port: 7001, path: [a, b, c]}
`

func TestRead(t *testing.T) {
	got := mustRead(t, ring)
	prefix := netip.MustParsePrefix
	want := &Topology{
		Name: "ring",
		Nodes: []Node{
			{Name: "a", Kind: Netns},
			{Name: "b", Kind: Netns},
			{Name: "c", Kind: Netns, CPUs: []int{0, 1, 3}},
			{Name: "d", Kind: Docker, Image: "busybox", Cmd: "sleep 1000", CPUs: []int{1}},
		},
		Links: []Link{
			{Type: Veth, Ends: []End{
				{Node: "a", Interface: "eth1", IPv4: prefix("10.99.0.0/31"), VF: noVF},
				{Node: "b", Interface: "eth1", IPv4: prefix("10.99.0.1/31"), VF: noVF},
			}},
			{Type: Veth, Delay: 10 * time.Millisecond, Jitter: 1500 * time.Microsecond, Loss: 0.5, MTU: 1400, Ends: []End{
				{Node: "b", Interface: "eth2", IPv4: prefix("10.99.0.2/31"), VF: noVF},
				{Node: "c", Interface: "eth1", IPv4: prefix("10.99.0.3/31"), VF: noVF},
			}},
			{Type: Veth, Ends: []End{
				{Node: "c", Interface: "eth2", IPv4: prefix("192.0.2.1/30"), VF: noVF},
				{Node: "a", Interface: "eth2", IPv4: prefix("192.0.2.2/30"), VF: noVF},
			}},
			{Type: Macvlan, Mode: "bridge", Ends: []End{{Node: "d", Interface: "out", Host: "eth0", VF: noVF}}},
			{Type: SRIOV, VLAN: 101, Ends: []End{
				{Node: "a", Interface: "wire", Host: "port1", VF: 0, IPv4: prefix("10.99.0.8/31")},
				{Node: "d", Interface: "wire", Host: "port2", VF: 3, IPv4: prefix("10.99.0.9/31")},
			}},
			{Type: HostDevice, Ends: []End{{Node: "b", Interface: "phy", Host: "eth7", VF: noVF}}},
		},
		Flows: []Flow{{Port: 7000, Path: []string{"a", "c"}}, {Port: 7001, Path: []string{"a", "b", "c"}}},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestDelay(t *testing.T) {
	ring := mustRead(t, ring)
	for _, tc := range []struct {
		path []string
		want time.Duration
	}{{[]string{"a", "c"}, 0}, {[]string{"a", "b", "c"}, 11500 * time.Microsecond}, {[]string{"b", "c", "b"}, 23 * time.Millisecond}} {
		if got := ring.Delay(tc.path); got != tc.want {
			t.Errorf("%v: %v, want %v", tc.path, got, tc.want)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	// with returns a file with two nodes and a link that contains the given lines.
	with := func(node, link, rest string) string {
		return "name: x\ntopology:\n  nodes:\n    a: " + node + "\n    b: {}\n  links:\n    - " + link + "\n" + rest
	}
	const plain = `endpoints: ["a:e1", "b:e1"]`
	for _, tc := range []struct{ name, text, want string }{
		{"empty", "", "f.yaml:1:1: is empty"},
		{"syntax", "name: [", "f.yaml:1:7: "},
		{"two documents", "name: x\n---\nname: y\n", "f.yaml:3:5: begins a second document"},
		{"anchor", "name: &x y\n", "f.yaml:1:7: name &x y: want a plain value"},
		{"a text", "hello", "f.yaml:1:1: is a text: want a mapping"},
		{"no topology", "name: x", "f.yaml:1:5: lacks topology"},
		{"no nodes", "name: x\ntopology: {}", "f.yaml:2:1: topology lacks nodes"},
		{"name", "name: a/b\ntopology: {nodes: {a: {}}}", `f.yaml:1:1: name is "a/b": want up to 32`},
		{"key", "nam: x\n" + with("{}", plain, ""), "f.yaml:1:1: nam is unknown: did you mean \"name\"?"},
		{"key of a node", with("{cpuset: 1}", plain, ""), "f.yaml:4:9: topology.nodes.a.cpuset is unknown: did you mean \"cpu-set\"?"},
		{"key of a link", with("{}", plain+"\n      delayy: 1ms", ""), "f.yaml:8:7: topology.links[0].delayy is unknown: did you mean \"delay\"?"},
		{"name of a node", with("{}\n    a+b: {}", plain, ""), "f.yaml:5:5: topology.nodes.a+b is no name"},
		{"kind", with("{kind: bridge}", plain, ""), `topology.nodes.a.kind is "bridge": want one of netns, linux`},
		{"image without kind", with("{image: busybox}", plain, ""), "f.yaml:4:9: topology.nodes.a.image does not go with kind netns"},
		{"container without image", with("{kind: linux}", plain, ""), "f.yaml:4:5: topology.nodes.a lacks image"},
		{"CPUs", with("{cpu-set: 3-1}", plain, ""), `f.yaml:4:9: topology.nodes.a.cpu-set is "3-1": want numbers of CPUs`},
		{"CPUs of a wrong type", with("{cpu-set: [1]}", plain, ""), "topology.nodes.a.cpu-set is a list: want a whole number or a text"},
		{"end without a colon", with("{}", `endpoints: ["a", "b:e1"]`, ""), `f.yaml:7:19: topology.links[0].endpoints[0] is "a": want NODE:INTERFACE`},
		{"three ends", with("{}", `endpoints: ["a:1", "b:1", "b:2"]`, ""), "topology.links[0].endpoints has 3 items: want 2 at most"},
		{"no ends", with("{}", `mtu: 1400`, ""), "topology.links[0] lacks endpoints"},
		{"unknown node", with("{}", `endpoints: ["a:e1", "bb:e1"]`, ""), `f.yaml:7:27: topology.links[0].endpoints[1] is on "bb", which is no node`},
		{"long interface", with("{}", `endpoints: ["a:abcdefghijklmnop", "b:e1"]`, ""), "want 1 to 15 bytes"},
		{"loopback", with("{}", `endpoints: ["a:lo", "b:e1"]`, ""), "not lo"},
		{"interface twice", with("{}", plain+"\n    - "+plain, ""), "f.yaml:8:19: topology.links[1].endpoints[0] is a:e1, which another link has already"},
		{"delay", with("{}", plain+"\n      delay: 5x", ""), `f.yaml:8:7: topology.links[0].delay is "5x": want a time with its unit`},
		{"negative delay", with("{}", plain+"\n      delay: -5ms", ""), `topology.links[0].delay is "-5ms"`},
		{"long delay", with("{}", plain+"\n      delay: 5m", ""), "f.yaml:8:7: topology.links[0].delay is 5m0s: want 1µs to 4m0s"},
		{"short delay", with("{}", plain+"\n      delay: 10ns", ""), "topology.links[0].delay is 10ns: want 1µs to 4m0s"},
		{"delay as a number", with("{}", plain+"\n      delay: 5", ""), "topology.links[0].delay is a number: want a time with its unit"},
		{"jitter", with("{}", plain+"\n      jitter: 5ms", ""), "topology.links[0].jitter is 5ms: want at most the delay, 0s"},
		{"loss", with("{}", plain+"\n      loss: 101", ""), "topology.links[0].loss is 101: want at most 100"},
		{"mtu", with("{}", plain+"\n      mtu: 1", ""), "topology.links[0].mtu is 1: want at least 68"},
		{"vlan of a veth", with("{}", plain+"\n      vlan: 1", ""), "topology.links[0].vlan does not go with this type of link"},
		{"veth with one end", with("{}", `endpoint: "a:e1"`, ""), "is a veth with one endpoint"},
		{"macvlan without parent", with("{}", `{type: macvlan, endpoint: "a:e1"}`, ""), "lacks host-interface"},
		{"VF without a number", with("{}", `{type: sriov, endpoint: {node: a, interface: e1, host-interface: p}}`, ""), "lacks vf"},
		{"VF twice", with("{}", `{type: sriov, host-interface: p, endpoints: [{node: a, interface: e1, vf: 1}, {node: b, interface: e1, vf: 1}]}`, ""), "takes VF 1 of p, which another link has already"},
		{"half an address", with("{}", `endpoints: [{node: a, interface: e1, ipv4: 192.0.2.1/24}, "b:e1"]`, ""), "has an ipv4 at one of two endpoints"},
		{"two networks", with("{}", `endpoints: [{node: a, interface: e1, ipv4: 192.0.2.1/24}, {node: b, interface: e1, ipv4: 192.0.3.1/24}]`, ""), "want addresses of one network"},
		{"one address", with("{}", `endpoints: [{node: a, interface: e1, ipv4: 192.0.2.1/24}, {node: b, interface: e1, ipv4: 192.0.2.1/24}]`, ""), "f.yaml:7:65: topology.links[0].endpoints[1] has 192.0.2.1, which a:e1 has already"},
		{"an address of SCON's", with("{}", `endpoints: [{node: a, interface: e1, ipv4: 10.99.0.1/24}, {node: b, interface: e1, ipv4: 10.99.0.2/24}]`, ""), `topology.links[0].endpoints[0].ipv4 is "10.99.0.1/24": addresses in 10.98.0.0/15 are those of nodes`},
		{"a network's address", with("{}", `endpoint: {node: a, interface: e1, ipv4: 192.0.2.0/24}`, ""), `topology.links[0].endpoint.ipv4 is "192.0.2.0/24": want a machine's`},
		{"a broadcast address", with("{}", `endpoint: {node: a, interface: e1, ipv4: 192.0.2.255/24}`, ""), `is "192.0.2.255/24": want a machine's`},
		{"a group's address", with("{}", `endpoint: {node: a, interface: e1, ipv4: 224.0.0.1/4}`, ""), `is "224.0.0.1/4": want a machine's`},
		{"every address", with("{}", `endpoint: {node: a, interface: e1, ipv4: 192.0.2.1/0}`, ""), `is "192.0.2.1/0": want a machine's`},
		{"interface with a number", with("{}", `endpoints: ["a:e%d", "b:e1"]`, ""), `has interface "e%d": want 1 to 15 bytes without`},
		{"image with an option", with("{kind: linux, image: --privileged}", plain, ""), `f.yaml:4:22: topology.nodes.a.image is "--privileged": want the name of an image`},
		{"no node at all", "name: x\ntopology: {nodes: {}}", "f.yaml:2:12: topology.nodes has 0: want 1 at least"},
		{"empty command", with("{kind: linux, image: x, cmd: ''}", plain, ""), "topology.nodes.a.cmd is empty"},
		{"no address", with("{}", `endpoints: [{node: a, interface: e1, ipv4: 192.0.2.1}, "b:e1"]`, ""), `ipv4 is "192.0.2.1": want a machine's IPv4 address`},
		{"port", with("{}", plain, "flows: [{port: 70000, path: [a, b]}]"), "f.yaml:8:10: flows[0].port is 70000: want at most 65535"},
		{"port twice", with("{}", plain, "flows: [{port: 7, path: [a, b]}, {port: 7, path: [b, a]}]"), "flows[1].port is 7, which another flow has already"},
		{"path to nowhere", with("{}", plain, "flows: [{port: 7, path: [a, q]}]"), `flows[0].path leads to "q", which is no node`},
		{"path without links", with("{}\n    c: {}", plain, "flows: [{port: 7, path: [a, c]}]"), `flows[0].path no links lead from "a" to "c"`},
		{"path to itself", with("{}", plain, "flows: [{port: 7, path: [a, a]}]"), `flows[0].path leads to "a" twice`},
		{"deep lists", "name: " + strings.Repeat("[", 1e5), "f.yaml:1:107: has more than 100 levels"},
		{"deep mappings", "name: " + strings.Repeat("{a: ", 1e5), "has more than 100 levels"},
		{"deep items", strings.Repeat("- ", 1e5), "f.yaml:1:201: has more than 100 levels"},
		{"path back", with("{}", plain, "flows: [{port: 7, path: [a, b, a]}]"), `flows[0].path leads to "a" twice`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := read(tc.text)
			if err == nil {
				t.Fatalf("was read as %+v", got)
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %q, want %q in it", err, tc.want)
			}
		})
	}
}

// Files with a byte order mark and other line ends are read.
func TestReadForeignText(t *testing.T) {
	mustRead(t, byteOrderMark+strings.ReplaceAll(ring, "\n", "\r\n"))
}

func TestReadTellsAllProblemsInTheirOrder(t *testing.T) {
	_, err := read("name: x\ntopology:\n  nodes: {a: {cpu-set: x}}\n  links:\n    - {endpoints: [\"a:1\", \"a:2\"], delay: y}\n")
	if err == nil {
		t.Fatal("was read")
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "f.yaml:3:") || !strings.HasPrefix(lines[1], "f.yaml:5:") {
		t.Errorf("errors %q", lines)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(ring)
	f.Add("name: x\ntopology: {nodes: {a: }}")
	f.Fuzz(func(t *testing.T, text string) {
		topology, err := read(text)
		if err == nil && (topology.Name == "" || len(topology.Nodes) == 0) {
			t.Errorf("read %+v", topology)
		}
	})
}

func TestLine(t *testing.T) {
	for _, n := range []int{0, MaxLine + 1} {
		if _, err := Line("x", n); err == nil {
			t.Errorf("a line of %d", n)
		}
	}
	l, err := Line("x", MaxLine)
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Nodes) != MaxLine+2 || len(l.Links) != MaxLine+1 {
		t.Errorf("%d nodes, %d links", len(l.Nodes), len(l.Links))
	}
	path, err := l.graph().expand([]string{In, Out})
	if err != nil || len(path) != len(l.Nodes) || path[1] != "n1" {
		t.Errorf("path %v, %v", path, err)
	}
	if dev := l.Egress("n64", Out); dev != Right {
		t.Errorf("n64 sends to out by %q", dev)
	}
	if problems := l.check(); problems != nil {
		t.Error(problems)
	}
	seen := map[netip.Addr]bool{}
	for _, n := range l.Nodes {
		seen[l.Addr(n.Name)] = true
	}
	for _, link := range l.Links {
		for _, e := range link.Ends {
			seen[e.IPv4.Addr()] = true
		}
	}
	if want := len(l.Nodes) + 2*len(l.Links); len(seen) != want {
		t.Errorf("%d different addresses, want %d", len(seen), want)
	}
}

func TestPathsGoByTheFewestLinks(t *testing.T) {
	top := mustRead(t, `name: x
topology:
  nodes: {a: , b: , c: , d: , e: }
  links:
    - endpoints: ["a:1", "b:1"]
    - endpoints: ["b:2", "c:1"]
    - endpoints: ["c:2", "d:1"]
    - endpoints: ["a:2", "e:1"]
    - endpoints: ["e:2", "d:2"]
flows:
  - {port: 1, path: [a, d]}
  - {port: 2, path: [a, c, d]}
  - {port: 3, path: [d, a]}
`)
	want := [][]string{{"a", "e", "d"}, {"a", "b", "c", "d"}, {"d", "e", "a"}}
	for i, f := range top.Flows {
		if !slices.Equal(f.Path, want[i]) {
			t.Errorf("flow %d: %v, want %v", i, f.Path, want[i])
		}
	}
}
