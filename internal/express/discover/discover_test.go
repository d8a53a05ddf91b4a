package discover

import (
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/test/bed/nstest"
)

// A device namespace as most tests want it:
//
//	container c: eth0 --- vc port of br0, 10.1.0.1/24
//	outside:     eth0 --- up0, 10.2.0.1/24
type device struct {
	t              testing.TB
	ns, c, outside string
}

func newDevice(t *testing.T) *device {
	d := &device{t: t, ns: nstest.New(t), c: nstest.New(t), outside: nstest.New(t)}
	nstest.Run(t, d.ns, fmt.Sprintf(`
		ip link add br0 type bridge
		ip addr add 10.1.0.1/24 dev br0
		ip link add vc type veth peer name eth0 netns %s
		ip link set vc master br0
		ip link add up0 type veth peer name eth0 netns %s
		ip addr add 10.2.0.1/24 dev up0
		ip link set br0 up
		ip link set vc up
		ip link set up0 up`, d.c, d.outside))
	nstest.Run(t, d.c, "ip link set eth0 up")
	nstest.Run(t, d.outside, "ip link set eth0 up")
	return d
}

func (d *device) run(commands string) {
	d.t.Helper()
	nstest.Run(d.t, d.ns, commands)
}

func (d *device) scan(opts Options) Topology {
	d.t.Helper()
	var top Topology
	var err error
	nstest.Do(d.t, d.ns, func() { top, err = Scan(opts) })
	if err != nil {
		d.t.Fatal(err)
	}
	return top
}

// names writes a topology in one line: bridges, ports, uplinks, skipped.
func names(top Topology) string {
	var b strings.Builder
	for _, x := range top.Bridges {
		fmt.Fprintf(&b, "bridge %s; ", x.Name)
	}
	for _, x := range top.Ports {
		if x.Routed() {
			fmt.Fprintf(&b, "port %s; ", x.Name)
			continue
		}
		fmt.Fprintf(&b, "port %s of %s; ", x.Name, x.Bridge.Name)
	}
	for _, x := range top.Uplinks {
		fmt.Fprintf(&b, "uplink %s", x.Name)
		if x.Bridge != (Bridge{}) {
			fmt.Fprintf(&b, ", of %s", x.Bridge.Name)
		}
		b.WriteString("; ")
	}
	for _, x := range top.Skipped {
		fmt.Fprintf(&b, "skipped %s: %s; ", x.Dev, x.Reason)
	}
	return strings.TrimSuffix(b.String(), "; ")
}

func TestScan(t *testing.T) {
	for _, tc := range []struct {
		name  string
		setup string
		opts  Options
		want  string
	}{
		{
			name: "bridge, port and uplink",
			want: "bridge br0; port vc of br0; uplink up0",
		},
		{
			name: "auto by name",
			opts: Options{Bridges: []string{Auto}, Uplinks: []string{Auto}},
			want: "bridge br0; port vc of br0; uplink up0",
		},
		{
			name:  "a bridge without containers is none, and leads nowhere",
			setup: "ip link add br1 type bridge\nip addr add 10.3.0.1/24 dev br1\nip link set br1 up",
			want:  "bridge br0; port vc of br0; uplink up0",
		},
		{
			name: "a bridge with a device behind it is an uplink, its port is not",
			setup: `ip link add br1 type bridge
				ip link add i0 type ifb
				ip link set i0 master br1
				ip link set br1 up
				ip link set i0 up
				ip addr add 10.3.0.1/24 dev br1`,
			want: "bridge br0; port vc of br0; uplink up0; uplink br1",
		},
		{
			name: "a bridge whose only container starts or has ended leads nowhere",
			setup: `ip link add br1 type bridge
				ip link add p0 type veth peer name p1
				ip link set p0 master br1
				ip link set br1 up
				ip link set p0 up
				ip addr add 10.3.0.1/24 dev br1`,
			want: "bridge br0; port vc of br0; uplink up0; skipped p0: veth with both ends in this namespace",
		},
		{
			name: "ports that are no containers'",
			setup: `ip link add in0 type veth peer name in1
				ip link set in0 master br0
				ip tuntap add tap0 mode tap
				ip link set tap0 master br0
				ip link add vx0 type vxlan id 5 dstport 4789 dev up0
				ip link set vx0 master br0`,
			want: "bridge br0; port vc of br0; uplink up0; " +
				"skipped in0: veth with both ends in this namespace; " +
				"skipped tap0: tap port: a machine of its own is behind it, no container; " +
				"skipped vx0: it leads out of the bridge of containers: what is bridged by it goes regular, " +
				"as by all devices but cards, VLANs and bonds (it is a vxlan)",
		},
		{
			name: "a macvlan device and one of another table only are uplinks",
			setup: `ip link add mv0 link up0 type macvlan
				ip link set mv0 up
				ip route add 10.4.0.0/24 dev mv0
				ip link add ta0 type ifb
				ip link set ta0 up
				ip route add 10.5.0.0/24 dev ta0 table 77`,
			want: "bridge br0; port vc of br0; uplink up0; uplink mv0; uplink ta0",
		},
		{
			name: "both next hops of a multipath route",
			setup: `ip link add i0 type ifb
				ip link add i1 type ifb
				ip link set i0 up
				ip link set i1 up
				ip route add 10.4.0.0/24 nexthop dev i0 nexthop dev i1`,
			want: "bridge br0; port vc of br0; uplink up0; uplink i0; uplink i1",
		},
		{
			name: "a device without routes is no uplink, nor one of unicast to none",
			setup: `ip link add i0 type ifb
				ip link set i0 up
				ip route add unreachable 10.4.0.0/24`,
			want: "bridge br0; port vc of br0; uplink up0",
		},
		{
			name: "a device without MAC addresses",
			setup: `ip tuntap add tun0 mode tun
				ip link set tun0 up
				ip route add 10.4.0.0/24 dev tun0`,
			want: "bridge br0; port vc of br0; uplink up0; uplink tun0",
		},
		{
			name: "a tunnel that leaves it to routes where packets go",
			setup: `ip link add vx0 type vxlan external dstport 4789
				ip link set vx0 up
				ip route add 10.4.0.0/24 encap ip id 7 dst 10.2.0.2 dev vx0`,
			want: "bridge br0; port vc of br0; uplink up0; skipped vx0: it tunnels each packet to where its route says " +
				"(external, or without remote address), and an express packet has none",
		},
		{
			name: "a named port of the bridge",
			setup: `ip link add i0 type ifb
				ip link set i0 master br0
				ip link add i1 type ifb
				ip link set i1 master br0`,
			opts: Options{Uplinks: []string{"i0"}},
			want: "bridge br0; port vc of br0; uplink i0, of br0; " +
				"skipped i1: it leads out of the bridge of containers: what is bridged by it goes regular, since it is not among the uplinks in the configuration",
		},
		{
			name:  "a pair that is named is no container's",
			setup: "ip link set up0 master br0",
			opts:  Options{Uplinks: []string{"up0"}},
			want:  "bridge br0; port vc of br0; uplink up0, of br0",
		},
		{
			name:  "a named port of a bridge without containers",
			setup: "ip link add br1 type bridge\nip link set up0 master br1",
			opts:  Options{Uplinks: []string{"up0"}},
			want:  "bridge br0; port vc of br0; uplink up0",
		},
		{
			name:  "a bridge that forgets MAC addresses",
			setup: "ip link set up0 master br0\nip link set br0 type bridge ageing_time 0",
			opts:  Options{Uplinks: []string{"up0"}},
			want: "bridge br0; port vc of br0; " +
				"skipped up0: it leads out of the bridge of containers: what is bridged by it goes regular, since br0 forgets MAC addresses at once (ageing_time 0)",
		},
		{
			name:  "a bridge that does not learn at a port",
			setup: "ip link set up0 master br0\nip link set vc type bridge_slave learning off",
			opts:  Options{Uplinks: []string{"up0"}},
			want: "bridge br0; port vc of br0; " +
				"skipped up0: it leads out of the bridge of containers: what is bridged by it goes regular, since br0 learns no MAC addresses at vc (learning off)",
		},
		{
			name:  "named devices",
			setup: "ip link add i0 type ifb\nip link add br1 type bridge",
			opts:  Options{Bridges: []string{"br1"}, Uplinks: []string{"i0"}},
			want:  "bridge br1; uplink i0",
		},
		{
			name: "a bridge that is not named is no uplink either",
			setup: `ip link add br1 type bridge
				ip link set br1 up
				ip addr add 10.3.0.1/24 dev br1`,
			opts: Options{Bridges: []string{"br1"}},
			want: "bridge br1; uplink up0",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDevice(t)
			d.run(tc.setup)
			if got := names(d.scan(tc.opts)); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// A container that a route leads to has a port without a bridge, until it leads
// further.
func TestRoutedContainer(t *testing.T) {
	d := newDevice(t)
	c2 := nstest.New(t)
	d.run(fmt.Sprintf(`
		ip link add cali0 type veth peer name eth0 netns %s
		ip link set cali0 up
		ip route add 10.4.0.7/32 dev cali0`, c2))
	if got, want := names(d.scan(Options{})), "bridge br0; port vc of br0; port cali0; uplink up0"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got, want := names(d.scan(Options{Bridges: []string{"br0"}})), "bridge br0; port vc of br0; uplink up0"; got != want {
		t.Errorf("with a named bridge: got  %s\nwant %s", got, want)
	}
	d.run("ip route add 10.4.9.0/24 via 10.4.0.7 dev cali0 onlink")
	if got, want := names(d.scan(Options{})), "bridge br0; port vc of br0; uplink up0; uplink cali0"; got != want {
		t.Errorf("as a gateway: got  %s\nwant %s", got, want)
	}
}

func TestPortAndUplinkFields(t *testing.T) {
	d := newDevice(t)
	d.run(`
		ip link set vc mtu 1400
		ip link set br0 address 02:00:00:00:00:b0
		ip link set up0 mtu 9000
		ip link set up0 address 02:00:00:00:00:07`)
	top := d.scan(Options{})
	var nsid, peer, index int
	nstest.Do(t, d.c, func() {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			t.Fatal(err)
		}
		peer, index = eth0.Attrs().Index, eth0.Attrs().ParentIndex
	})
	nstest.Do(t, d.ns, func() {
		vc, err := netlink.LinkByName("vc")
		if err != nil {
			t.Fatal(err)
		}
		nsid = vc.Attrs().NetNsID
	})
	want := Port{index, "vc", top.Bridges[0], [6]byte{2, 0, 0, 0, 0, 0xb0}, 1400, nsid, peer, true, "noqueue", "veth", top.Ports[0].Packets, true, false, false}
	if top.Ports[0] != want {
		t.Errorf("port %+v, want %+v", top.Ports[0], want)
	}
	if u := top.Uplinks[0]; u.MTU != 9000 || u.MAC.String() != "02:00:00:00:00:07" {
		t.Errorf("uplink %+v", u)
	}

	nstest.Run(t, d.c, "ip link set eth0 down")
	d.run("tc qdisc add dev vc root tbf rate 10mbit burst 10k latency 10ms")
	if p := d.scan(Options{}).Ports[0]; p.Up || p.Qdisc != "tbf" {
		t.Errorf("port %+v, want it down and with a tbf qdisc", p)
	}
}

func TestNamedDeviceErrors(t *testing.T) {
	d := newDevice(t)
	for _, tc := range []struct {
		opts Options
		want string
	}{
		{Options{Uplinks: []string{"eth9"}}, `uplink "eth9": no such device; "ip link" lists them`},
		{Options{Bridges: []string{"br9"}}, `bridge "br9": no such device; "ip link" lists them`},
		{Options{Bridges: []string{"up0"}}, `bridge "up0": the device is a veth, no bridge; "ip link show type bridge" lists them`},
	} {
		nstest.Do(t, d.ns, func() {
			if _, err := Scan(tc.opts); err == nil || err.Error() != tc.want {
				t.Errorf("Scan(%+v) = %v, want %s", tc.opts, err, tc.want)
			}
		})
	}
}

func TestForeignIngress(t *testing.T) {
	const u32 = "protocol ip u32 match ip protocol 17 0xff classid 1:1"
	for _, tc := range []struct{ name, setup, want string }{
		{"no qdisc", "", ""},
		{"no filter", "tc qdisc add dev up0 clsact", ""},
		{
			"clsact",
			"tc qdisc add dev up0 clsact\ntc filter add dev up0 ingress pref 7 " + u32,
			"u32 filter, pref 7",
		},
		{
			"ingress qdisc",
			"tc qdisc add dev up0 ingress\ntc filter add dev up0 parent ffff: pref 3 " + u32,
			"u32 filter, pref 3",
		},
		{
			"shared block",
			"tc qdisc add dev up0 ingress_block 5 clsact\ntc filter add block 5 pref 9 " + u32,
			"u32 filter, pref 9",
		},
		{"egress alone", "tc qdisc add dev up0 clsact\ntc filter add dev up0 egress " + u32, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDevice(t)
			d.run(tc.setup)
			nstest.Do(t, d.ns, func() {
				up0, err := netlink.LinkByName("up0")
				if err != nil {
					t.Fatal(err)
				}
				got, err := ForeignIngress(up0.Attrs().Index)
				if err != nil || got != tc.want {
					t.Errorf("got %q, %v; want %q", got, err, tc.want)
				}
			})
		})
	}
}
