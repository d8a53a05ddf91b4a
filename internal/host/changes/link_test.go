package changes

import (
	"encoding/binary"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/test/bed/nstest"
)

// enslaved is the kernel's message of device 3, whose master is of a kind.
func enslaved(kind string, up bool) nlmsg.Message {
	b := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b[4:], 3)
	if up {
		binary.NativeEndian.PutUint32(b[8:], unix.IFF_UP|unix.IFF_LOWER_UP)
	}
	b = append(b, nlmsg.Attr(unix.IFLA_IFNAME, []byte("v3\x00"))...)
	b = append(b, nlmsg.Attr(unix.IFLA_MASTER, binary.NativeEndian.AppendUint32(nil, 9))...)
	b = append(b, nlmsg.Attr(unix.IFLA_LINKINFO, nlmsg.Attr(unix.IFLA_INFO_SLAVE_KIND, []byte(kind+"\x00")))...)
	return nlmsg.Message{Type: unix.RTM_NEWLINK, Data: b}
}

// Routes are by the devices of a VRF, and not by the ports of a bridge: what goes down
// may end them, and what comes up again may activate them.
func TestDeviceOfVRF(t *testing.T) { // by message: not every kernel has VRFs
	for _, tc := range []struct {
		kind    string
		again   bool  // whether coming up again is stale
		atPorts Scope // of going down
	}{
		{"bridge", false, Scope{Ports: [2]int{3}}},
		{"vrf", true, Scope{}},
	} {
		k := newKnown()
		k.evaluate(enslaved(tc.kind, false))
		k.evaluate(enslaved(tc.kind, true))
		if e, _ := k.evaluate(enslaved(tc.kind, false)); !e.Stale || e.Scope != tc.atPorts {
			t.Errorf("%s: down: %+v", tc.kind, e)
		}
		if e, _ := k.evaluate(enslaved(tc.kind, true)); e.Stale != tc.again || e.Scope != (Scope{}) {
			t.Errorf("%s: up again: %+v", tc.kind, e)
		}
	}
}

// A tunnel that comes up takes packets that another one had; other devices do not.
func TestTunnelComesUp(t *testing.T) { // by message: not every kernel has tunnels
	for kind, stale := range map[string]bool{"ipip": true, "vxlan": true, "gre": true, "dummy": false, "veth": false} {
		for _, bridged := range []bool{false, true} {
			is := func(up bool) nlmsg.Message {
				m := enslaved("bridge", up)
				m.Data = m.Data[:unix.SizeofIfInfomsg]
				info := nlmsg.Attr(unix.IFLA_INFO_KIND, []byte(kind+"\x00"))
				if bridged {
					info = append(info, nlmsg.Attr(unix.IFLA_INFO_SLAVE_KIND, []byte("bridge\x00"))...)
				}
				m.Data = append(m.Data, nlmsg.Attr(unix.IFLA_LINKINFO, info)...)
				return m
			}
			k := newKnown()
			k.evaluate(is(false))
			if e, _ := k.evaluate(is(true)); e.Stale != stale {
				t.Errorf("%s, bridged %v: %+v", kind, bridged, e)
			}
		}
	}
}

// A tunnel gets another remote end.
func TestTunnelSettings(t *testing.T) {
	for _, kind := range []string{"ipip", "gre", "ip6tnl mode any", "ip6gre"} {
		t.Run(kind, func(t *testing.T) {
			local, remote, other := "10.2.0.1", "10.2.0.7", "10.2.0.8"
			if strings.HasPrefix(kind, "ip6") {
				local, remote, other = "fd00::1", "fd00::7", "fd00::8"
			}
			w := newDevice(t)
			ends := kind + " local " + local + " remote "
			add := "ip link add t1 type " + ends + remote
			if out, err := exec.Command("ip", strings.Fields("-n "+w.ns+" "+strings.TrimPrefix(add, "ip "))...).CombinedOutput(); err != nil {
				if strings.Contains(string(out), "Unknown device type") {
					t.Skipf("this kernel has no tunnels of kind %s", kind)
				}
				t.Fatalf("%s: %s", add, out)
			}
			w.run("ip link set t1 up")
			w.watch(Options{}, roomy)
			if got, want := kinds(w.notified("ip link set t1 type "+ends+other)), "link topology stale"; got != want {
				t.Errorf("notified of %q, want %q", got, want)
			}
		})
	}
}

// Settings of IPv4 that a netlink message sets are announced with the device alone.
func TestSettingByNetlink(t *testing.T) {
	const conf, rpFilter = 1, 8 // IFLA_INET_CONF, IPV4_DEVCONF_RP_FILTER
	w := newDevice(t)
	w.watch(Options{}, roomy)
	for value, want := range []string{"netconf stale", ""} {
		nstest.Do(t, w.ns, func() {
			device, err := netlink.LinkByName("up0")
			if err != nil {
				t.Fatal(err)
			}
			req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
			msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
			msg.Index = int32(device.Attrs().Index)
			req.AddData(msg)
			spec := nl.NewRtAttr(unix.IFLA_AF_SPEC|unix.NLA_F_NESTED, nil)
			spec.AddRtAttr(unix.AF_INET|unix.NLA_F_NESTED, nil).AddRtAttr(conf|unix.NLA_F_NESTED, nil).AddRtAttr(rpFilter, nl.Uint32Attr(1))
			req.AddData(spec)
			if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
				t.Fatal(err)
			}
		})
		if got := kinds(w.notified("")); got != want {
			t.Errorf("set %d times: notified of %q, want %q", value+1, got, want)
		}
	}
	if got := kinds(w.notified("sysctl -qw net.ipv4.conf.up0.rp_filter=0\nip link set up0 mtu 1400")); got != "link topology stale, netconf stale" {
		t.Errorf("set otherwise: notified of %q", got)
	}
}

func TestVLANs(t *testing.T) { // by message: not every kernel filters VLANs
	k := newKnown()
	k.devices[2] = device{name: "br0", up: true}
	k.devices[3] = device{name: "vc", up: true}
	k.devices[4] = device{name: "vd", up: true}
	k.devices[5] = device{name: "br1"}
	k.devices[6] = device{name: "ve", up: true, bridged: true}
	k.ports[3] = port{unix.IFLA_BRPORT_STATE: 3}
	k.ports[4] = port{unix.IFLA_BRPORT_STATE: 0}
	for _, tc := range []struct {
		name  string
		index uint32
		typ   uint16
		stale bool
		scope Scope
	}{
		{"a port's", 3, unix.RTM_NEWVLAN, true, Scope{Ports: [2]int{3}}},
		{"a port's, removed", 3, unix.RTM_DELVLAN, true, Scope{Ports: [2]int{3}}},
		{"those that a port begins with", 4, unix.RTM_NEWVLAN, false, Scope{Ports: [2]int{4}}},
		{"those of one that leaves", 6, unix.RTM_DELVLAN, true, Scope{Ports: [2]int{6}}},
		{"a bridge's", 2, unix.RTM_NEWVLAN, true, Scope{}},
		{"those that a bridge begins with", 5, unix.RTM_NEWVLAN, false, Scope{}},
	} {
		m := nlmsg.Message{Type: tc.typ, Data: binary.NativeEndian.AppendUint32(make([]byte, 4), tc.index)}
		if e, ok := k.evaluate(m); ok != tc.stale || e.Kind != Link || !e.Stale || e.Scope != tc.scope {
			t.Errorf("%s: notified %v of %+v, want %v of %+v", tc.name, ok, e, tc.stale, tc.scope)
		}
	}
}

// Settings of a macvlan that is down, by which it takes packets of the device that it is on, are
// announced by nobody.
func TestMacvlanThatIsDown(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]string{
		"its mode": "mode source", "an address": "macaddr add 02:00:00:00:00:05", "for it alone": "nodst",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newDevice(t)
			mode := map[bool]string{true: "bridge", false: "source"}[name == "its mode"]
			w.run("ip link add mv0 link up0 type macvlan mode " + mode)
			w.watch(Options{OnStale: func(Event) {}}, roomy)
			w.run("ip link set mv0 type macvlan " + settings)
			if e := w.next(); e.Reason != "settings of mv0" || !e.Stale {
				t.Errorf("notified of %+v", e)
			}
		})
	}
}
