package express_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/composer"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// icmpAbout returns a frame from a router: an ICMP message of a type and code, whose second
// word is rest, about an echo reply that the receiver is said to have sent.
func icmpAbout(to, from net.HardwareAddr, router, receiver, dst netip.Addr, typ, code byte, rest uint32) []byte {
	ip := func(src, dst netip.Addr, length int) []byte {
		f := scontest.Frame(to, from, netip.AddrPortFrom(src, 0), netip.AddrPortFrom(dst, 0), "")[scontest.IPAt:scontest.UDPAt]
		f[9] = unix.IPPROTO_ICMP
		binary.BigEndian.PutUint16(f[2:], uint16(length))
		f[10], f[11] = 0, 0
		binary.BigEndian.PutUint16(f[10:], internetSum(f))
		return f
	}
	icmp := binary.BigEndian.AppendUint32([]byte{typ, code, 0, 0}, rest)
	icmp = append(icmp, ip(receiver, dst, 28)...)
	icmp = append(icmp, 0, 0, 0xff, 0xff, 0, 0, 0, 0)
	binary.BigEndian.PutUint16(icmp[2:], internetSum(icmp))
	frame := append(append([]byte(nil), to...), from...)
	frame = binary.BigEndian.AppendUint16(frame, unix.ETH_P_IP)
	frame = append(frame, ip(router, receiver, 20+len(icmp))...)
	return append(frame, icmp...)
}

// internetSum is the checksum of RFC 1071 of an even number of bytes.
func internetSum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// macOf returns the address of a device.
func macOf(b *scontest.Bed, node, dev string) (mac net.HardwareAddr) {
	b.T.Helper()
	err := b.Do(node, func() error {
		l, err := netlink.LinkByName(dev)
		if err == nil {
			mac = l.Attrs().HardwareAddr
		}
		return err
	})
	if err != nil {
		b.T.Fatal(err)
	}
	return mac
}

// A router's redirect, which the kernel does not announce, is followed within a lease of a
// second where this host accepts redirects.
func TestRedirect(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{})
	b.Sh(lab.Edge, "ip addr add 10.99.0.1/32 dev lo")
	b.Sh(lab.Device, `
		ip route replace default via 10.77.0.2
		ip neigh replace 10.77.0.9 lladdr 02:00:00:00:00:99 dev eth0 nud permanent`) // nobody's
	b.Up()
	c := b.Connect("udp", lab.Container(1), lab.Edge, netip.AddrPortFrom(behind, 0)).GoExpress()
	wantLease(t, c, composer.BoundByConntrack, 40*time.Second) // by default it accepts none
	b.Sh(lab.Device, "sysctl -qw net.ipv4.conf.all.accept_redirects=1 net.ipv4.conf.eth0.accept_redirects=1")
	wantLease(t, c, "redirects of other routers are accepted (accept_redirects), and the kernel does not announce them", time.Second)
	n := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
	c.WaitExpressOriginal()
	const redirect, host = 5, 1
	gateway := netip.MustParseAddr("10.77.0.9").As4()
	b.OpenWire(lab.Edge).Send(icmpAbout(macOf(b, lab.Device, lab.Uplink), macOf(b, lab.Edge, "eth0"),
		netip.MustParseAddr("10.77.0.2"), netip.MustParseAddr("10.77.0.1"), behind, redirect, host, binary.BigEndian.Uint32(gateway[:])))
	stopsWithin(t, n, time.Now(), time.Second+scontest.Heartbeat)
	b.WantNoInvalid()
}

// Where this host may learn of another way without an announcement, leases of the IP version are
// short.
func TestLearntWay(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{IPv6: true})
	c, c6 := b.Outgoing("tcp", 1).GoExpress(), b.Outgoing6("tcp", 1).GoExpress()
	for _, s := range []struct {
		on, off        string
		touches, other *scontest.Connection
		bound          string
	}{
		{
			"net.ipv4.ip_forward_use_pmtu=1", "net.ipv4.ip_forward_use_pmtu=0", c, c6,
			"path MTUs that this host has learnt count for what it forwards (ip_forward_use_pmtu), and the kernel does not announce them",
		},
		{
			"net.ipv6.conf.eth0.forwarding=0", "net.ipv6.conf.eth0.forwarding=1", c6, c,
			"IPv6 takes redirects and other routers at eth0, where forwarding is off, and the kernel does not announce them",
		},
	} {
		b.Sh(lab.Device, "sysctl -qw "+s.on)
		wantLease(t, s.touches, s.bound, time.Second)
		wantLease(t, s.other, composer.BoundBySetting, 45*time.Second)
		b.Sh(lab.Device, "sysctl -qw "+s.off)
		wantLease(t, s.touches, composer.BoundBySetting, 45*time.Second)
	}
}

// A next hop whose neighbour is found again gets its share of the connections back, where
// neighbours choose among several.
func TestNextHopValidAgain(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{IPv6: true})
	secondLink(b)
	b.Sh(lab.Device, `
		sysctl -qw net.ipv4.fib_multipath_use_neigh=1
		ip route add 10.99.0.1 nexthop via 10.77.0.2 dev eth0 nexthop via 10.78.0.2 dev eth1
		ip neigh replace 10.78.0.2 dev eth1 nud failed`)
	b.Up()
	var all []*scontest.Connection
	for range 8 {
		c := b.Connect("udp", lab.Container(1), lab.Edge, netip.AddrPortFrom(behind, 0)).GoExpress()
		if f := c.MustFlow(); f.Oif != "eth0" {
			t.Fatalf("express out of %s", f.Oif)
		}
		all = append(all, c)
	}
	wantLease(t, all[0], composer.BoundByChoice, time.Second)
	b.Sh(lab.Device, fmt.Sprintf("ip neigh replace 10.78.0.2 lladdr %v dev eth1 nud permanent", macOf(b, lab.Edge, "eth1")))
	scontest.Eventually(t, "connections go by the next hop that is valid again", func() error {
		for _, c := range all {
			if c.GoExpress().MustFlow().Oif == "eth1" {
				return nil
			}
		}
		return errors.New("all go out of eth0")
	})
	b.WantNoInvalid()
}
