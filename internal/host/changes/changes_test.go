package changes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/test/bed/nstest"
)

func TestKernel(t *testing.T) {
	const u32 = "pref 7 protocol ip u32 match ip protocol 17 0xff classid 1:1"
	for _, tc := range []struct{ name, before, change, want string }{
		{"a device appears", "", "ip link add br1 type bridge", "link topology"},
		{"a device that is down changes and goes", "ip link add br1 type bridge",
			"ip link set br1 mtu 1400\nip link set br1 name br2\nip link del br2", "link topology"},
		{"a device goes", "", "ip link del vd", "link topology, link topology stale at a port"},
		{"a device goes down", "", "ip link set up0 down", "link topology stale"},
		{"a bridge's port goes down", "", "ip link set vd down", "link topology stale at a port"},
		{"MTU", "", "ip link set up0 mtu 1400", "link topology stale"},
		{"settings of a tunnel", "ip link add vx0 type vxlan id 5 dstport 4789 ttl 5 dev up0\nip link set vx0 up",
			"ip link set vx0 type vxlan id 5 ttl 6 dev up0", "link topology stale"},
		{"settings of a bridge", "", "ip link set br0 type bridge nf_call_iptables 1", "link topology stale"},
		{"settings of a bridge by which nothing is decided", "", "ip link set br0 type bridge forward_delay 500", ""},
		{"address of a device", "", "ip link set up0 address 02:00:00:00:00:09", "link topology stale"},
		{"a port leaves its bridge", "bridge vlan del dev vd vid 1\nbridge fdb add 02:00:00:00:00:05 dev vd master static", "ip link set vd nomaster", "fdb stale, fdb stale at a port, link topology stale, link topology stale at a port"},
		{"a device joins a bridge", "ip link set br0 type bridge vlan_default_pvid 0", "ip link set up0 master br0", "link topology stale"},
		{"what nothing depends on", "", "ip link set up0 txqueuelen 77\nip link set up0 alias x", ""},
		{"rename of a device that is down", "ip link set up0 down", "ip link set up0 name up1", "address stale, link topology"},
		{"a device comes up for the first time", "",
			"ip link add vx type veth peer name vy\nip link set vy up\nsysctl -qw net.ipv4.conf.vx.rp_filter=2\nip link set vx up", "link topology"},
		{"a device comes up again", "ip link set up0 down", "ip link set up0 up", "link topology stale, route topology stale in 10.2.0.0/24, route topology stale in 10.2.0.255/32"},
		{"a device that has a broadcast address elsewhere comes up for the first time", "",
			"ip link add br9 type bridge\nip addr add 10.9.0.1/32 broadcast 10.8.0.1 dev br9\nip link set br9 up",
			"address stale, link topology, route topology stale in 10.8.0.1/32"},
		{"no ARP", "", "ip link set up0 arp off", "link topology stale"},
		{"a device that takes another one's packets", "", "ip link add mv0 link up0 type macvlan mode passthru", "link topology stale"},
		{"one that takes what comes from an address", "ip link add mv0 link up0 type macvlan mode source nodst\nip link set mv0 up",
			"ip link set mv0 type macvlan macaddr add 02:00:00:00:00:05", "link topology stale"},
		{"a device on another", "", "ip link add mv0 link up0 type macvlan mode bridge\nip link set mv0 up", "link topology"},
		{"group", "", "ip link set up0 group 7", "link topology stale"},
		{"other name", "", "ip link property add dev up0 altname other", ""},
		{"port flags", "", "bridge link set dev vc isolated on", "link topology stale at a port"},
		{"port flags as they are", "", "bridge link set dev vc isolated off", ""},
		{"backup of a port that is down", "bridge link set dev vc state 0", "bridge link set dev vc backup_port vd", "link topology stale"},
		{"port state", "", "bridge link set dev vc state 0", "link topology stale at a port"},

		{"address", "", "ip addr add 10.9.0.1/32 dev up0", "address stale"},
		{"address of a new device", "", "ip link add br9 type bridge\nip addr add 10.9.0.1/24 dev br9\nip link set br9 up",
			"address stale in 10.9.0.0/24, link topology, route topology stale in 10.9.0.0/24, route topology stale in 10.9.0.255/32"},
		{"address with a peer", "", "ip addr add 10.9.0.1 peer 10.8.0.1/32 dev up0", "address stale, route topology stale in 10.8.0.1/32"},
		{"default route", "", "ip route add default dev up0", "route topology stale"},
		{"address goes", "ip addr add 10.9.0.1/32 dev up0", "ip addr del 10.9.0.1/32 dev up0", "address stale, route topology stale in 10.9.0.1/32"},
		{"route", "", "ip route add 10.9.0.0/24 dev up0", "route topology stale in 10.9.0.0/24"},
		{"route of another table", "", "ip route add 10.9.0.0/24 dev up0 table 7", "route topology stale in 10.9.0.0/24"},
		{"route goes", "ip route add 10.9.0.0/24 dev up0", "ip route del 10.9.0.0/24", "route topology stale in 10.9.0.0/24"},
		{"local route", "", "ip route add local 10.9.0.1 dev up0 table local proto kernel", "route topology stale in 10.9.0.1/32"},
		{"local network", "", "ip route add local 10.9.0.0/24 dev up0 table local proto kernel", "route topology stale in 10.9.0.0/24"},
		{"local route of IPv6", "", "ip route add local 2001:db8:9::1 dev up0 table local proto kernel", "route topology stale in 2001:db8:9::1/128"},
		{"local route goes", "ip route add local 10.9.0.1 dev up0 table local proto kernel", "ip route del local 10.9.0.1 dev up0 table local", "route topology stale in 10.9.0.1/32"},
		{"local route to an address", "", "ip route del local 10.2.0.1 dev up0 table local\nip route add local 10.2.0.1 dev up0 table local proto kernel", ""},
		{"nexthop", "", "ip nexthop add id 7 via 10.2.0.2 dev up0", "route topology stale"},
		{"route of IPv6", "", "ip route add 2001:db8:9::/64 dev up0", "route topology stale in 2001:db8:9::/64"},
		{"neighbour of IPv6", "ip neigh add 2001:db8::7 lladdr 02:00:00:00:00:01 dev up0", "ip neigh replace 2001:db8::7 lladdr 02:00:00:00:00:02 dev up0", "neighbour stale to 02:00:00:00:00:01"},
		{"forwarding of IPv6", "", "sysctl -qw net.ipv6.conf.up0.forwarding=1", "netconf stale"},

		{"neighbour learned", "", "ip neigh add 10.2.0.2 lladdr 02:00:00:00:00:02 dev up0 nud reachable", ""},
		{"neighbour set where none are learned", "ip link set up0 arp off", "ip neigh add 10.2.0.2 lladdr 02:00:00:00:00:02 dev up0 nud permanent", "neighbour stale"},
		{"neighbour asked again", "ip neigh add 10.2.0.2 lladdr 02:00:00:00:00:02 dev up0 nud reachable",
			`ip neigh change 10.2.0.2 lladdr 02:00:00:00:00:02 dev up0 nud stale
			ip neigh change 10.2.0.2 lladdr 02:00:00:00:00:02 dev up0 nud delay
			ip neigh change 10.2.0.2 lladdr 02:00:00:00:00:02 dev up0 nud probe
			ip neigh change 10.2.0.2 lladdr 02:00:00:00:00:02 dev up0 nud reachable`, ""},
		{"neighbour moved", "ip neigh add 10.2.0.2 lladdr 02:00:00:00:00:02 dev up0 nud reachable",
			"ip neigh change 10.2.0.2 lladdr 02:00:00:00:00:03 dev up0", "neighbour stale to 02:00:00:00:00:02"},
		{"neighbour failed", "ip neigh add 10.2.0.2 lladdr 02:00:00:00:00:02 dev up0 nud reachable",
			"ip neigh change 10.2.0.2 dev up0 nud failed", "neighbour stale to 02:00:00:00:00:02"},
		{"neighbour goes", "ip neigh add 10.2.0.2 lladdr 02:00:00:00:00:02 dev up0 nud reachable",
			"ip neigh del 10.2.0.2 dev up0", "neighbour stale to 02:00:00:00:00:02"},
		{"neighbour proxied", "", "ip neigh add proxy 10.2.0.9 dev up0", ""},

		{"MAC learned", "", "bridge fdb add 02:00:00:00:00:05 dev vc master static", ""},
		{"MAC seen again", "bridge fdb add 02:00:00:00:00:05 dev vc master static",
			"bridge fdb replace 02:00:00:00:00:05 dev vc master dynamic", ""},
		{"MAC moved", "bridge fdb add 02:00:00:00:00:05 dev vc master static",
			"bridge fdb replace 02:00:00:00:00:05 dev vd master static", "fdb stale at two ports"},
		{"MAC becomes the bridge's own", "bridge fdb add 02:00:00:00:00:05 dev vc master static",
			"bridge fdb replace 02:00:00:00:00:05 dev vc master permanent", "fdb stale"},
		{"MAC goes", "bridge fdb add 02:00:00:00:00:05 dev vc master static",
			"bridge fdb del 02:00:00:00:00:05 dev vc master", "fdb stale at a port"},
		{"remote end of a tunnel moved", "ip link add vx0 type vxlan id 5 dstport 4789 dev up0\n" +
			"ip link set vx0 up\nbridge fdb add 02:00:00:00:00:05 dev vx0 dst 10.2.0.2",
			"bridge fdb replace 02:00:00:00:00:05 dev vx0 dst 10.2.0.3", "fdb stale"},
		{"network at the remote end of a tunnel", "ip link add vx0 type vxlan id 5 dstport 4789 dev up0\n" +
			"ip link set vx0 up\nbridge fdb add 02:00:00:00:00:05 dev vx0 dst 10.2.0.2",
			"bridge fdb replace 02:00:00:00:00:05 dev vx0 dst 10.2.0.2 vni 6", "fdb stale"},
		{"port at the remote end of a tunnel", "ip link add vx0 type vxlan id 5 dstport 4789 dev up0\n" +
			"ip link set vx0 up\nbridge fdb add 02:00:00:00:00:05 dev vx0 dst 10.2.0.2",
			"bridge fdb replace 02:00:00:00:00:05 dev vx0 dst 10.2.0.2 port 4790", "fdb stale"},
		{"remote ends of a tunnel", "ip link add vx0 type vxlan id 5 dstport 4789 dev up0\nip link set vx0 up\n" +
			"ip nexthop add id 2 via 10.2.0.2 fdb\nip nexthop add id 3 via 10.2.0.3 fdb\nip nexthop add id 12 group 2 fdb\nip nexthop add id 13 group 3 fdb\n" +
			"bridge fdb add 02:00:00:00:00:05 dev vx0 nhid 12",
			"bridge fdb replace 02:00:00:00:00:05 dev vx0 nhid 13", "fdb stale"},

		{"filter", "tc qdisc add dev up0 clsact", "tc filter add dev up0 ingress " + u32, "filter topology stale"},
		{"filter goes", "tc qdisc add dev up0 clsact\ntc filter add dev up0 egress " + u32,
			"tc filter del dev up0 egress", "filter topology stale"},
		{"filter of a shared block", "tc qdisc add dev up0 ingress_block 5 clsact", "tc filter add block 5 " + u32,
			"filter topology stale"},
		{"clsact", "", "tc qdisc add dev up0 clsact", "filter topology"},
		{"clsact with a shared block", "", "tc qdisc add dev up0 ingress_block 5 clsact", "filter topology stale"},
		{"shaping", "", "tc qdisc add dev vc root tbf rate 10mbit burst 10k latency 10ms", "filter topology stale"},

		{"setting", "", "sysctl net.ipv4.conf.up0.rp_filter=1", "netconf stale"},
		{"setting as it is", "sysctl net.ipv4.conf.up0.rp_filter=1", "sysctl net.ipv4.conf.up0.rp_filter=1", ""},
		{"a setting by which routes of a new device count", "",
			"ip link add vx type veth peer name vy\nsysctl -qw net.ipv4.conf.vx.ignore_routes_with_linkdown=1", "link topology, netconf stale"},
		{"setting of all devices", "", "sysctl net.ipv4.conf.all.rp_filter=2", "netconf stale"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := newDevice(t)
			w.run(tc.before)
			w.watch(Options{}, roomy)
			if got := kinds(w.notified(tc.change)); got != tc.want {
				t.Errorf("notified of %q, want %q", got, tc.want)
			}
		})
	}
}

func TestRename(t *testing.T) {
	w := newDevice(t)
	w.watch(Options{}, roomy)
	var err error
	nstest.Do(t, w.ns, func() { err = rename("up0", "up1") })
	if version, e := features.LinuxVersionCode(); e == nil && version < 6<<16|2<<8 && errors.Is(err, unix.EBUSY) {
		t.Skip("a device that is up keeps its name: this kernel is older than Linux 6.2")
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, want := kinds(w.notified("")), "address stale, link topology stale"; got != want {
		t.Errorf("notified of %q, want %q", got, want)
	}
}

func rename(from, to string) error {
	device, err := netlink.LinkByName(from)
	if err != nil {
		return err
	}
	return netlink.LinkSetName(device, to)
}

func TestRuleIsStale(t *testing.T) {
	w := newDevice(t)
	w.watch(Options{}, roomy)
	for _, change := range []string{"ip rule add pref 77 table 254", "ip rule del pref 77"} {
		w.run(change)
		if e := w.next(); e.Kind != Rule || !e.Stale {
			t.Errorf("%s: notified of %+v", change, e)
		}
	}
}

func TestContainerStartIsNotStale(t *testing.T) {
	w := newDevice(t)
	w.watch(Options{}, roomy)
	other := nstest.New(t)
	events := w.notified(fmt.Sprintf(`
		ip link add v9 type veth peer name p9
		ip link set v9 master br0
		ip link set p9 netns %s
		ip -n %[1]s link set p9 name eth0
		ip link set v9 up
		ip -n %[1]s link set eth0 up
		ip -n %[1]s addr add 10.1.0.9/24 dev eth0
		ip netns exec %[1]s ping -c 1 10.1.0.1`, other))
	if got, want := kinds(events), "link topology"; got != want {
		t.Errorf("notified of %q, want %q", got, want)
	}
}

func TestContainerStopIsStale(t *testing.T) {
	w := newDevice(t)
	w.watch(Options{}, roomy)
	nstest.Run(t, w.c, "ip link del eth0")
	got := kinds(w.notified(""))
	if !strings.Contains(got, "link topology stale at a port") || strings.Contains(got+",", "stale,") {
		t.Errorf("notified of %q, want a stale port, and no more", got)
	}
}

func TestOwnFilters(t *testing.T) {
	w := newDevice(t)
	w.run("tc qdisc add dev up0 clsact")
	w.watch(Options{}, roomy)
	nstest.Do(t, w.ns, func() {
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type:         ebpf.SchedCLS,
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
			License:      "GPL",
		})
		if err != nil {
			t.Fatal(err)
		}
		defer prog.Close()
		up0, err := netlink.LinkByName("up0")
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{
				LinkIndex: up0.Attrs().Index,
				Parent:    netlink.HANDLE_MIN_INGRESS,
				Priority:  5,
				Protocol:  unix.ETH_P_ALL,
			},
			Fd: prog.FD(), Name: "scon_from_wire", DirectAction: true,
		}); err != nil {
			t.Fatal(err)
		}
	})
	if got := kinds(w.notified("")); got != "" {
		t.Errorf("at the own filter: notified of %q, want nothing", got)
	}
	if got, want := kinds(w.notified("tc filter del dev up0 ingress pref 5 protocol all handle 1 bpf")), "filter topology"; got != want {
		t.Errorf("as it is deleted: notified of %q, want %q", got, want)
	}
}

func TestNFTables(t *testing.T) {
	w := newDevice(t)
	reasons := make(chan string, queueLength)
	w.watch(Options{OnStale: func(e Event) { reasons <- e.Reason }}, roomy)
	for _, change := range []string{
		"nft add table ip t",
		"nft add chain ip t c",
		"nft add rule ip t c counter accept",
		"nft add set ip t s { type ipv4_addr ; }",
		"nft add element ip t s { 10.0.0.1 }",
		"iptables -A FORWARD -j ACCEPT",
		"iptables -t nat -A POSTROUTING -j MASQUERADE",
	} {
		w.run(change)
		e := w.next()
		by := strings.Fields(change)[0]
		if e.Kind != Ruleset || !e.Stale || e.Topology || !strings.HasSuffix(e.Reason, "by "+by) {
			t.Errorf("%s: notified of %+v", change, e)
		}
		if reason := <-reasons; reason != e.Reason { // called before the event came
			t.Errorf("%s: OnStale had %q, the event %q", change, reason, e.Reason)
		}
	}
}

func TestLargeTransactionIsOneEvent(t *testing.T) {
	w := newDevice(t)
	var elements []string
	for i := range 20000 {
		elements = append(elements, fmt.Sprintf("10.0.%d.%d", i/256, i%256))
	}
	file := filepath.Join(t.TempDir(), "rules")
	rules := "add table ip t\nadd set ip t s { type ipv4_addr; }\nadd element ip t s { " + strings.Join(elements, ",") + " }"
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	// The elements' messages alone would fill the buffer many times over.
	w.watch(Options{}, limits{buffer: 16 << 10, rules: 16 << 10, queue: queueLength})
	w.run("nft -f " + file)
	if e := w.next(); e.Kind != Ruleset {
		t.Errorf("notified of %+v", e)
	}
	w.run("nft delete table ip t")
	if e := w.next(); e.Kind != Ruleset {
		t.Errorf("then notified of %+v", e)
	}
}

// The local routes of an address are no news, nor is that of all routers of its network.
func TestLocalRoutes(t *testing.T) {
	t.Parallel()
	w := newDevice(t)
	w.run("sysctl -qw net.ipv6.conf.up0.forwarding=1")
	w.watch(Options{}, roomy)
	w.run("ip addr add 2001:db8:9::1/64 dev up0 nodad")
	for e := (Event{}); e.Kind != Address; e = w.next() {
		if e.Kind == Route && e.Scope.Network.IsSingleIP() {
			t.Errorf("notified of %+v", e)
		}
	}
	for _, e := range w.notified("") { // the address takes effect with a lock that this waits for
		if e.Kind == Route && e.Scope.Network.IsSingleIP() {
			t.Errorf("notified of %+v", e)
		}
	}
}

// A route to what is local that no address stands behind is a change, whatever it says of its
// maker: packets to a neighbour are for this host then.
func TestLocalRoutesByHand(t *testing.T) {
	t.Parallel()
	w := newDevice(t)
	w.run("ip addr add 10.9.0.1/24 dev up0\nip addr add 2001:db8:9::1/64 dev up0 nodad")
	w.watch(Options{}, roomy)
	for _, route := range []string{
		"local 10.9.0.0/24 dev up0 proto kernel", "local 10.9.0.0/25 dev up0 proto kernel", "local 10.9.0.77 dev up0 proto kernel",
		"local 2001:db8:9::/64 dev up0 proto kernel", "unicast 10.9.0.0/30 dev up0 table local proto kernel",
	} {
		w.run("ip route add " + route)
		for e := w.next(); e.Kind != Route || !e.Stale; e = w.next() {
		}
	}
}

func TestIPsec(t *testing.T) {
	w := newDevice(t)
	w.watch(Options{}, roomy)
	const policy = "src 10.1.0.0/24 dst 10.9.0.0/24 dir out"
	for _, change := range []struct{ run, want string }{
		{"ip xfrm policy add " + policy + " tmpl src 10.2.0.1 dst 10.2.0.2 proto esp mode tunnel", "policy added"},
		{"ip xfrm policy update " + policy + " action block", "policy added"},
		{"ip xfrm policy delete " + policy, "policy added"},
		{"ip xfrm policy add " + policy + " limit time-soft 1 limit time-hard 2", "policy added"},
		{"", "policy has expired"}, // not when the soft lifetime ends
	} {
		w.run(change.run)
		if e := w.next(); e.Kind != IPsec || !e.Stale || e.Topology || !strings.Contains(e.Reason, change.want) {
			t.Errorf("%s: notified of %+v", change.run, e)
		}
	}
}

// A security association matters where a policy has an optional template, and does not
// elsewhere. The kernel of a machine may have no kind of association.
func TestIPsecAssociation(t *testing.T) {
	ns := nstest.New(t)
	var x *ipsec
	nstest.Do(t, ns, func() {
		s, err := openIPsec(&output{}, roomy)
		if err != nil || s == nil {
			t.Fatal(s, err)
		}
		x = s.(*ipsec)
	})
	defer x.Close()
	matters := func(typ nl.XfrmMsgType) bool {
		_, stale := x.judge(nlmsg.Message{Type: uint16(typ)})
		return stale
	}
	change := func(command string) {
		nstest.Run(t, ns, command)
		if err := x.Receive(func(m nlmsg.Message) { x.judge(m) }); err != nil {
			t.Fatal(err)
		}
	}
	const optional = "src 10.1.0.0/24 dst 10.8.0.0/24 dir out"
	const template = " tmpl proto esp mode transport level "
	for _, step := range []struct {
		change  string
		matters bool
	}{
		{"ip xfrm policy add src 10.1.0.0/24 dst 10.9.0.0/24 dir out" + template + "required", false},
		{"ip xfrm policy add " + optional + template + "use", true},
		{"ip xfrm policy delete " + optional, false},
		{"ip xfrm policy add " + optional + template + "use", true},
		{"ip xfrm policy update " + optional + template + "required", false},
		{"ip xfrm policy update " + optional + template + "use", true},
		{"ip xfrm policy flush", false},
	} {
		change(step.change)
		if matters(nl.XFRM_MSG_NEWSA) != step.matters || matters(nl.XFRM_MSG_UPDSA) != step.matters {
			t.Errorf("%s: an association matters, or does not", step.change)
		}
		if matters(nl.XFRM_MSG_EXPIRE) || matters(nl.XFRM_MSG_DELSA) {
			t.Errorf("%s: the end of an association matters", step.change)
		}
	}
	nstest.Run(t, ns, "ip xfrm policy add "+optional+template+"use")
	if err := x.read(); err != nil || !matters(nl.XFRM_MSG_NEWSA) {
		t.Errorf("one that was there before does not matter: %v", err)
	}
}

func TestLegacyLock(t *testing.T) {
	w := newDevice(t)
	t.Setenv("XTABLES_LOCKFILE", w.lock)
	w.watch(Options{}, roomy)
	legacy := func() {
		t.Helper()
		w.run("iptables-legacy -w -A FORWARD -j ACCEPT")
		if e := w.next(); e.Kind != Ruleset || !e.Stale || !strings.Contains(e.Reason, "legacy") {
			t.Errorf("notified of %+v", e)
		}
		if _, err := os.Stat(w.lock); err != nil {
			t.Fatal(err)
		}
	}
	legacy() // makes the file
	legacy()
	if err := os.Remove(w.lock); err != nil {
		t.Fatal(err)
	}
	legacy()
	// Another file of the directory is no news: the next event is of the rule.
	if err := os.WriteFile(w.lock+"2", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.run("iptables -A FORWARD -j ACCEPT")
	if e := w.next(); e.Kind != Ruleset || strings.Contains(e.Reason, "legacy") {
		t.Errorf("notified of %+v", e)
	}
}

func TestMissingLockDirectory(t *testing.T) {
	_, err := watch(t.Context(), Options{}, limits{buffer: buffer, rules: buffer, queue: 1, lock: "/nowhere/lock"})
	if err == nil || !strings.Contains(err.Error(), "watch /nowhere/lock") {
		t.Errorf("watch = %v", err)
	}
}

func TestOverrun(t *testing.T) {
	w := newDevice(t)
	// The reader hangs in the first change until the buffer ran over.
	hold := make(chan struct{})
	var first sync.Once
	reached := make(chan struct{})
	w.watch(Options{OnStale: func(Event) {
		first.Do(func() { close(reached); <-hold })
	}}, limits{buffer: 4 << 10, rules: 4 << 10, queue: queueLength})
	w.run("ip rule add pref 77 table 254")
	<-reached
	for i := range 30 {
		w.run(fmt.Sprintf("ip link set up0 mtu %d", 1000+i))
	}
	close(hold)
	for overruns := 0; overruns < 2; {
		e := w.next()
		if e.Kind == Overrun {
			if overruns++; !e.Stale || !e.Topology {
				t.Errorf("notified of %+v", e)
			}
		}
	}
	// The state was read again: what has not changed is not reported.
	if got := kinds(w.notified("ip link set up0 mtu 1029")); got != "" {
		t.Errorf("notified of %q without a change", got)
	}
	if got, want := kinds(w.notified("ip link set up0 mtu 1500")), "link topology stale"; got != want {
		t.Errorf("after the overrun: notified of %q, want %q", got, want)
	}
}

// A change that comes after an overrun was announced and before the state is
// read again makes decisions stale, too.
func TestChangeWithinOverrun(t *testing.T) {
	w := newDevice(t)
	hold, reached := make(chan struct{}), make(chan struct{})
	var first, lost sync.Once
	var changed, since atomic.Bool
	w.watch(Options{OnStale: func(e Event) {
		first.Do(func() { close(reached); <-hold })
		if changed.Load() {
			since.Store(true)
		}
		if e.Kind == Overrun {
			lost.Do(func() {
				w.run("ip link set up0 mtu 1400")
				changed.Store(true)
			})
		}
	}}, limits{buffer: 4 << 10, rules: 4 << 10, queue: queueLength})
	w.run("ip rule add pref 77 table 254")
	<-reached
	for i := range 30 {
		w.run(fmt.Sprintf("ip link set up0 mtu %d", 1000+i))
	}
	close(hold)
	for deadline := time.Now().Add(patience); !since.Load(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no decision was made stale after the change")
		}
	}
}

func TestSlowReceiverFindsOverrun(t *testing.T) {
	w := newDevice(t)
	const changes = 20
	var stale atomic.Int32
	all := make(chan struct{})
	w.watch(Options{OnStale: func(Event) {
		if stale.Add(1) == changes {
			close(all)
		}
	}}, limits{buffer: buffer, rules: buffer, queue: 4})
	for i := range changes {
		w.run(fmt.Sprintf("ip rule add pref %d table 254", 100+i))
	}
	select {
	case <-all: // nothing was held up
	case <-time.After(patience):
		t.Fatalf("OnStale was called %d times, want %d", stale.Load(), changes)
	}
	if e := w.next(); e.Kind != Overrun || !e.Stale || !e.Topology {
		t.Errorf("notified of %+v, want an overrun", e)
	}
}

func FuzzJudge(f *testing.F) {
	for _, typ := range []uint16{
		unix.RTM_NEWLINK, unix.RTM_NEWNEIGH, unix.RTM_NEWADDR, unix.RTM_NEWROUTE, unix.RTM_NEWNETCONF, unix.RTM_NEWTFILTER,
	} {
		f.Add(typ, make([]byte, 40))
	}
	f.Fuzz(func(t *testing.T, typ uint16, b []byte) {
		k := newKnown()
		m := nlmsg.Message{Type: typ, Data: b}
		k.evaluate(m)
		if e, ok := k.evaluate(m); ok && e.Stale && (e.Kind == Neighbour || e.Kind == FDB || e.Kind == Netconf) {
			t.Errorf("the same again is stale: %+v", e)
		}
	})
}

func TestEndClosesChannel(t *testing.T) {
	w := newDevice(t)
	w.watch(Options{}, roomy)
	w.cancel()
	for range w.events {
	}
}

func TestParseInotify(t *testing.T) {
	event := func(mask byte, name string) []byte {
		b := make([]byte, unix.SizeofInotifyEvent+16)
		b[5], b[12] = mask, 16
		copy(b[unix.SizeofInotifyEvent:], name)
		return b
	}
	const overflow = unix.IN_Q_OVERFLOW >> 8
	for _, tc := range []struct {
		name        string
		in          []byte
		found, lost bool
	}{
		{"nothing", nil, false, false},
		{"other file", event(0, "x.lock"), false, false},
		{"longer name", event(0, "xtables.lock2"), false, false},
		{"the file, second", append(event(0, "a"), event(0, "xtables.lock")...), true, false},
		{"overflow", event(overflow, ""), false, true},
		{"cut short", event(0, "xtables.lock")[:20], false, false},
	} {
		if found, lost := parseInotify(tc.in, "xtables.lock"); found != tc.found || lost != tc.lost {
			t.Errorf("%s: got %v, %v; want %v, %v", tc.name, found, lost, tc.found, tc.lost)
		}
	}
}
