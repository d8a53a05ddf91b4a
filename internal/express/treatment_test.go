package express_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/nstest"
	"github.com/scon-project/scon/test/bed/scontest"
)

// The treatment of packets that rules mark: the same for express ones.

// dscpOf is the DSCP, 0..63, with which a node's client gets the server's next
// packet.
func dscpOf(c *scontest.Connection, wire *scontest.Wire) (all []byte) {
	const etherLen, typeOfService = 14, 1
	port := scontest.PortOf(c.Server.LocalAddr())
	for _, p := range wire.Arrived(func(frame []byte) bool {
		return len(frame) > etherLen+28 && frame[etherLen+9] == unix.IPPROTO_UDP &&
			uint16(frame[etherLen+22])<<8|uint16(frame[etherLen+23]) == port
	}) {
		all = append(all, p.Data[etherLen+typeOfService]>>2)
	}
	return all
}

// Packets leave with the DSCP that a rule sets, and with another one as soon
// as the rule changes.
func TestDSCPOfRule(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	wire := b.OpenWire(lab.Edge)
	c := b.Outgoing("udp", 1)
	b.Sh(lab.Device, `
		nft add table ip treat
		nft add chain ip treat f { type filter hook postrouting priority -150 ; }`)
	for _, dscp := range []byte{8, 46} {
		b.Sh(lab.Device, fmt.Sprintf("nft flush chain ip treat f\nnft add rule ip treat f ip saddr 172.17.0.2 ip dscp set %d", dscp))
		time.Sleep(20 * time.Millisecond) // a netlink message takes less
		dscpOf(c, wire)
		c.MustPing(20)
		c.GoExpress()
		c.MustPing(20)
		seen := dscpOf(c, wire)
		if len(seen) < 40 {
			t.Fatalf("%d packets seen", len(seen))
		}
		for i, got := range seen {
			if got != dscp {
				t.Errorf("packet %d has DSCP %d, want %d", i, got, dscp)
			}
		}
	}
}

// Packets leave with the DSCP that their sender sets in each.
func TestDSCPOfSender(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	wire := b.OpenWire(lab.Edge)
	c := b.Outgoing("udp", 1).GoExpress()
	for i := range 60 {
		want := byte(i/20%2) * 46
		scontest.SetOption(t, c.Client, unix.IPPROTO_IP, unix.IP_TOS, int(want)<<2)
		dscpOf(c, wire)
		c.MustPing(1)
		if seen := dscpOf(c, wire); len(seen) != 1 || seen[0] != want {
			t.Errorf("packet %d has DSCP %v, want %d", i, seen, want)
		}
	}
	c.GoExpress()
}

// classes gives the uplink two classes, 1:10 and the default 1:20.
const classes = `tc qdisc add dev eth0 root handle 1: htb default 20
	tc class add dev eth0 parent 1: classid 1:10 htb rate 100mbit
	tc class add dev eth0 parent 1: classid 1:20 htb rate 100mbit`

// Packets are queued in the class of the priority that a rule sets.
func TestPriorityOfRule(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	c := b.Outgoing("udp", 1)
	b.Sh(lab.Device, classes+`
		nft add table ip treat
		nft add chain ip treat f { type filter hook forward priority -150 ; }`)
	for _, class := range []string{"1:10", "1:20"} {
		b.Sh(lab.Device, "nft flush chain ip treat f\nnft add rule ip treat f ip saddr 172.17.0.2 meta priority set "+class)
		c.GoExpress()
		wantClass(b, c, class)
	}
	b.Sh(lab.Device, "nft delete table ip treat\niptables-nft -t mangle -A POSTROUTING -s 172.17.0.2 -j CLASSIFY --set-class 1:10")
	c.GoExpress()
	wantClass(b, c, "1:10")
}

// wantClass fails unless a class of eth0 counts the packets, most of them
// express.
func wantClass(b *scontest.Bed, c *scontest.Connection, class string) {
	b.T.Helper()
	count := "tc -s class show dev eth0 classid " + class
	seen, express := packets(b, count), c.MustFlow().ExpressPackets[0]
	c.MustPing(50)
	seen, express = packets(b, count)-seen, c.MustFlow().ExpressPackets[0]-express
	if seen < 50 || express < 45 {
		b.T.Errorf("class %s saw %d of 50 packets, %d were express", class, seen, express)
	}
}

// A filter of the uplink's qdisc sees the mark that a rule sets.
func TestMarkOfRule(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{})
	c := b.Outgoing("udp", 1)
	b.Sh(lab.Device, classes+`
		tc filter add dev eth0 parent 1: protocol ip prio 1 u32 match mark 7 0xff flowid 1:10`)
	c.MustPing(1)
	if packets(b, "tc -s class show dev eth0 classid 1:10") > 0 {
		t.Skip("u32 does not match marks: no CONFIG_CLS_U32_MARK")
	}
	b.Up()
	c.GoExpress()
	wantClass(b, c, "1:20")
	b.Sh(lab.Device, "iptables-nft -t mangle -A PREROUTING -s 172.17.0.2 -j MARK --set-mark 7")
	c.GoExpress()
	wantClass(b, c, "1:10")
	b.Sh(lab.Device, "iptables-nft -t mangle -F\niptables-nft -t mangle -A PREROUTING -s 172.17.0.2 -j CONNMARK --set-mark 7\n"+
		"iptables-nft -t mangle -A PREROUTING -s 172.17.0.2 -j CONNMARK --restore-mark")
	c.GoExpress()
	wantClass(b, c, "1:10")
}

// Where a queue asks conntrack for the addresses before translation, connections with
// translated ones stay regular, since their express packets have no entry: all of a host's
// containers would be one to it.
func TestQueueAsksConntrack(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{})
	nstest.Do(t, b.Node(lab.Device), func() {
		if out, err := exec.Command("tc", "qdisc", "add", "dev", "eth0", "root", "cake", "nat").CombinedOutput(); err != nil {
			if !strings.Contains(string(out), "is unknown") {
				t.Fatalf("%v: %s", err, out)
			}
			t.Skip("missing in this kernel: qdisc cake")
		}
	})
	b.Up()
	c := b.Outgoing("udp", 1)
	wantAsked := func() {
		t.Helper()
		scontest.Eventually(t, "it is regular, and explained", func() error {
			for range 50 {
				c.MustPing(1)
			}
			if f, err := c.Flow(); err == nil && f.State == api.FlowExpress {
				return fmt.Errorf("%+v", f)
			}
			x, err := b.Daemon.Explain(lab.Port(1))
			if err == nil && !strings.Contains(fmt.Sprint(x.Findings), "qdisc cake at eth0, by nat") {
				err = fmt.Errorf("explain says %+v", x.Findings)
			}
			return err
		})
	}
	wantAsked()
	b.Sh(lab.Device, "tc qdisc change dev eth0 root cake nonat")
	c.GoExpress()
	b.Sh(lab.Device, "tc qdisc change dev eth0 root cake nat")
	wantAsked()
}

// twoUplinks gives device a second path to edge, by eth1 and table 100, and
// edge an address that both lead to.
func twoUplinks(b *scontest.Bed) netip.AddrPort {
	b.T.Helper()
	b.Sh(lab.Edge, "ip addr add 10.99.0.1/32 dev lo")
	b.Sh(lab.Device, `
		ip link add eth1 type veth peer name eth1 netns `+b.Node(lab.Edge)+`
		ip addr add 10.78.0.1/24 dev eth1
		ip link set eth1 up`)
	b.Sh(lab.Edge, `
		ip addr add 10.78.0.2/24 dev eth1
		ip link set eth1 up`)
	b.Sh(lab.Device, "ip route add default via 10.78.0.2 dev eth1 table 100")
	return netip.MustParseAddrPort("10.99.0.1:7000")
}

// wantUplink fails unless a connection goes express out of a device.
func wantUplink(c *scontest.Connection, dev string) {
	c.B.T.Helper()
	addr := map[string]netip.Addr{"eth0": lab.DeviceAddr, "eth1": netip.MustParseAddr("10.78.0.1")}[dev]
	c.ArriveFrom(addr)
	c.GoExpress()
	if f := c.MustFlow(); f.Oif != dev {
		c.B.T.Errorf("express out of %s, want %s", f.Oif, dev)
	}
}

// Connections take the uplink that their mark selects, and another one as soon
// as the rule that marks them changes.
func TestUplinkByMark(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	to := twoUplinks(b)
	b.Sh(lab.Device, "ip rule add fwmark 7 table 100")
	chosen := b.Connect("udp", lab.Container(1), lab.Edge, to)
	other := b.Connect("udp", lab.Container(1), lab.Edge, netip.AddrPortFrom(to.Addr(), to.Port()+1))
	mark := fmt.Sprintf("-t mangle -A PREROUTING -i docker0 -p udp --dport %d -j MARK --set-mark 7", to.Port())
	for range 2 {
		b.Sh(lab.Device, "iptables-nft "+mark)
		wantUplink(chosen, "eth1")
		wantUplink(other, "eth0")
		b.Sh(lab.Device, "iptables-nft -t mangle -F")
		wantUplink(chosen, "eth0")
		wantUplink(other, "eth0")
	}
	b.WantNoInvalid()
}

// Containers take the uplink that their address selects.
func TestUplinkBySource(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Containers: 2})
	to := twoUplinks(b)
	var conns [2]*scontest.Connection
	for i := range conns {
		conns[i] = b.Connect("udp", lab.Container(i+1), lab.Edge, netip.AddrPortFrom(to.Addr(), to.Port()+uint16(i)))
	}
	for i, c := range conns {
		b.Sh(lab.Device, fmt.Sprintf("ip rule add from %v table 100", lab.ContainerAddr(i+1)))
		wantUplink(c, "eth1")
		wantUplink(conns[1-i], "eth0")
		b.Sh(lab.Device, fmt.Sprintf("ip rule del from %v table 100", lab.ContainerAddr(i+1)))
	}
	b.WantNoInvalid()
}
