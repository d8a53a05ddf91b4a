package discover

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/test/bed/nstest"
)

func readExitsIn(t *testing.T, ns string) (found exits) {
	t.Helper()
	nstest.Do(t, ns, func() {
		sock, err := nlmsg.OpenRequests(unix.NETLINK_ROUTE)
		if err != nil {
			t.Fatal(err)
		}
		defer sock.Close()
		if found, _, err = readExits(sock); err != nil {
			t.Fatal(err)
		}
	})
	return found
}

func TestReadExits(t *testing.T) {
	ns := nstest.New(t)
	nstest.Run(t, ns, `
		ip link add d0 index 10 type ifb
		ip link add d1 index 11 type ifb
		ip link add d2 index 12 type ifb
		ip link add d3 index 13 type ifb
		ip link add d4 index 14 type ifb
		ip link set d0 up
		ip link set d1 up
		ip link set d2 up
		ip link set d3 up
		ip route add 10.0.0.1/32 dev d0
		ip route add 10.0.0.2/32 dev d1
		ip route add 10.1.0.0/24 via 10.0.0.2 dev d1 onlink
		ip route add 10.2.0.0/24 table 1000 nexthop dev d2 nexthop dev d3
		ip route add unreachable 10.3.0.0/24`)
	want := exits{10: 0, 11: further, 12: further | spread, 13: further | spread}
	if got := readExitsIn(t, ns); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if !addLabelRule(t, ns) {
		t.Log("this kernel has no rules about flow labels (Linux 6.14)")
		return
	}
	for index := range want {
		want[index] |= judging
	}
	if got := readExitsIn(t, ns); !maps.Equal(got, want) {
		t.Errorf("with a rule about flow labels: got %v, want %v", got, want)
	}
}

// addLabelRule adds a routing rule about a flow label, and reports whether the kernel has such.
func addLabelRule(t *testing.T, ns string) (added bool) {
	t.Helper()
	const label, mask, table = 26, 27, 15 // FRA_FLOWLABEL, _FLOWLABEL_MASK, _TABLE
	nstest.Do(t, ns, func() {
		req := nl.NewNetlinkRequest(unix.RTM_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
		rule := nl.NewRtMsg() // as struct fib_rule_hdr
		rule.Family, rule.Table, rule.Scope, rule.Protocol, rule.Type = unix.AF_INET6, 0, 0, 0, unix.FR_ACT_TO_TBL
		req.AddData(rule)
		req.AddData(nl.NewRtAttr(table, nl.Uint32Attr(254)))
		req.AddData(nl.NewRtAttr(label, []byte{0, 0, 0, 7}))
		req.AddData(nl.NewRtAttr(mask, []byte{0, 0, 0, 0xff}))
		_, err := req.Execute(unix.NETLINK_ROUTE, 0)
		if added = err == nil; !added && knowsLabels(t) {
			t.Fatal(err)
		}
	})
	return added
}

// knowsLabels reports whether the kernel has rules about flow labels: since Linux 6.14.
func knowsLabels(t *testing.T) bool {
	t.Helper()
	var name unix.Utsname
	var major, minor int
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major > 6 || major == 6 && minor >= 14
}

// The devices of next-hop objects are found where routes name the objects alone, those of
// groups as well, and how soon a resilient group moves packets.
func TestReadNexthops(t *testing.T) {
	for _, compat := range []int{0, 1} {
		ns := nstest.New(t)
		nstest.Run(t, ns, fmt.Sprintf(`
			sysctl -qw net.ipv4.nexthop_compat_mode=%d
			ip link add d0 index 10 type ifb
			ip link add d1 index 11 type ifb
			ip link add d2 index 12 type ifb
			ip link add d3 index 13 type ifb
			ip link add d4 index 14 type ifb
			ip link set d0 up
			ip link set d1 up
			ip link set d2 up
			ip link set d3 up
			ip link set d4 up
			ip nexthop add id 1 dev d0
			ip nexthop add id 2 via 10.0.0.2 dev d1 onlink
			ip nexthop add id 3 via 10.0.0.3 dev d2 onlink
			ip nexthop add id 4 via fe80::4 dev d3
			ip nexthop add id 5 via 10.0.0.5 dev d4 onlink
			ip nexthop add id 10 group 2/3
			ip nexthop add id 11 group 2/3 type resilient buckets 8 idle_timer 7
			ip nexthop add id 12 group 2/3 type resilient buckets 8 idle_timer 5
			ip route add 10.0.0.1/32 nhid 1
			ip route add 10.1.0.0/24 nhid 10
			ip route add 10.2.0.0/24 nhid 11
			ip route add 2001:db8::/64 nhid 4`, compat))
		want := exits{10: 0, 11: further | spread, 12: further | spread, 13: further}
		nstest.Do(t, ns, func() {
			sock, err := nlmsg.OpenRequests(unix.NETLINK_ROUTE)
			if err != nil {
				t.Fatal(err)
			}
			defer sock.Close()
			got, idle, err := readExits(sock)
			if err != nil || !maps.Equal(got, want) || idle != 7*time.Second {
				t.Errorf("compatible %d: got %v, %v, %v; want %v", compat, got, idle, err, want)
			}
		})
	}
}

// A route's BPF program sees every packet: nothing goes express by the device that
// the route leads to, be it an uplink or the bridge.
func TestRouteWithProgram(t *testing.T) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.LWTXmit, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}, // BPF_OK
	})
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) {
		t.Skipf("no BPF programs of routes: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	for _, tc := range []struct {
		dev, want string
		nexthops  bool
	}{
		{dev: "up0", want: "bridge br0; port vc of br0; skipped up0: " + judgedRoute},
		{dev: "up0", nexthops: true, want: "bridge br0; port vc of br0; skipped up0: " + judgedRoute},
		{dev: "br0", want: "bridge br0; uplink up0; skipped vc: " + judgedRoute},
	} {
		t.Run(fmt.Sprint(tc.dev, tc.nexthops), func(t *testing.T) {
			d := newDevice(t)
			nstest.Do(t, d.ns, func() {
				dev, err := netlink.LinkByName(tc.dev)
				if err != nil {
					t.Fatal(err)
				}
				encap := &netlink.BpfEncap{}
				if err := encap.SetProg(nl.LWT_BPF_XMIT, prog.FD(), "theirs"); err != nil {
					t.Fatal(err)
				}
				_, to, _ := net.ParseCIDR("10.4.0.0/24")
				r := netlink.Route{Dst: to, LinkIndex: dev.Attrs().Index, Encap: encap}
				if tc.nexthops {
					r = netlink.Route{Dst: to, MultiPath: []*netlink.NexthopInfo{{LinkIndex: dev.Attrs().Index, Encap: encap}, {LinkIndex: dev.Attrs().Index}}}
				}
				if err := netlink.RouteAdd(&r); errors.Is(err, unix.EOPNOTSUPP) {
					t.Skipf("no BPF programs of routes: %v", err)
				} else if err != nil {
					t.Fatal(err)
				}
			})
			if got := names(d.scan(Options{})); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// A routing rule about flow labels judges every packet, of either direction: nothing goes express.
func TestRuleAboutLabels(t *testing.T) {
	d := newDevice(t)
	if !addLabelRule(t, d.ns) {
		t.Skip("missing: Linux 6.14, for rules about flow labels")
	}
	if got, want := names(d.scan(Options{})), "bridge br0; skipped vc: "+judgedRoute+"; skipped up0: "+judgedRoute; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Each of very many routes costs no memory.
func TestRoutesAreNotKept(t *testing.T) {
	const routes = 20_000
	ns := nstest.New(t)
	nstest.Run(t, ns, "ip link add d0 type ifb\nip link set d0 up")
	var sock *nlmsg.Requests
	nstest.Do(t, ns, func() {
		var err error
		if sock, err = nlmsg.OpenRequests(unix.NETLINK_ROUTE); err != nil {
			t.Fatal(err)
		}
	})
	defer sock.Close()
	allocations := func() (n float64) {
		nstest.Do(t, ns, func() {
			n = testing.AllocsPerRun(3, func() {
				if _, _, err := readExits(sock); err != nil {
					t.Fatal(err)
				}
			})
		})
		return n
	}
	few := allocations()
	var batch strings.Builder
	for i := range routes {
		fmt.Fprintf(&batch, "route add 10.%d.%d.0/24 dev d0\n", i>>8, i&0xff)
	}
	file := filepath.Join(t.TempDir(), "routes")
	if err := os.WriteFile(file, []byte(batch.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	nstest.Run(t, ns, "ip -batch "+file)
	if many := allocations(); many > few+routes/100 {
		t.Errorf("%v allocations for no route, %v for %d", few, many, routes)
	}
}

func FuzzNexthops(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 0, 0, 0, 0, 8, 0, 1, 0, 7, 0, 0, 0, 8, 0, 5, 0, 3, 0, 0, 0})
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 1, 0, 7, 0, 0, 0, 20, 0, 2, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 12, 0, 12, 0, 8, 0, 2, 0, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		hops := make(nexthops)
		hops.note(nlmsg.Message{Type: unix.RTM_NEWNEXTHOP, Data: b})
		for _, hop := range hops {
			hops.addTo(make(exits), hop, 0)
			if len(hop.group) > len(b)/sizeofNexthopGroup || hops.idle() < 0 {
				t.Errorf("%+v from %d bytes", hop, len(b))
			}
		}
	})
}

func FuzzExits(f *testing.F) {
	f.Add([]byte{2, 24, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0, 12, 0, 9, 0, 8, 0, 0, 0, 3, 0, 0, 0})
	f.Add([]byte{2, 32, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0, 8, 0, 4, 0, 3, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		found := make(exits)
		found.add(nlmsg.Message{Type: unix.RTM_NEWROUTE, Data: b}, nil)
		if len(found) > len(b)/8 {
			t.Errorf("%d devices from %d bytes", len(found), len(b))
		}
	})
}
