package express_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// A datagram that waits for a neighbour has passed the rules. After a change of the
// rules, an identical one enters and is dropped; when the first one
// leaves, its decision is not the second one's, and nothing goes express.
func TestHeldBack(t *testing.T) {
	t.Parallel()
	b := newExpress6(t, scontest.Layout{})
	for name, h := range map[string]held{
		"IPv4 without an id": {
			c: b.Outgoing("udp", 1), addr: lab.EdgeAddr, drop: "iptables-nft -I FORWARD -p udp -j DROP",
			hold: "ip link set eth0 arp off", release: "ip link set eth0 arp on",
		},
		"IPv6": {
			c: b.Outgoing6("udp", 1), addr: lab.EdgeAddr6, drop: "ip6tables-nft -I FORWARD -p udp -j DROP",
			hold: "ip6tables-nft -A INPUT -p icmpv6 --icmpv6-type neighbour-solicitation -j DROP", release: "ip6tables-nft -F INPUT",
		},
	} {
		t.Run(name, func(t *testing.T) { h.test(t, b.In(t)) })
	}
}

// A rule for the outer packets of a tunnel holds at once as well, if an equal packet
// has waited for the underlay's neighbour.
func TestHeldBackInTunnel(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Overlay: lab.OverlayFlannel})
	h := held{
		c:    b.Connect("udp", lab.Container(1), lab.Edge, netip.AddrPortFrom(lab.FlannelEdge, 0)),
		addr: lab.EdgeAddr, drop: "iptables-nft -I OUTPUT -p udp --dport 8472 -j DROP",
		hold: "ip link set eth0 arp off", release: "ip link set eth0 arp on",
	}
	h.test(t, b)
}

// held is a connection to a neighbour that stops answering.
type held struct {
	c    *scontest.Connection
	addr netip.Addr // the neighbour's
	drop string     // adds a rule that drops the connection's packets
	// hold stops the neighbour, release lets it answer again.
	hold, release string
}

func (h held) test(t *testing.T, b *scontest.Bed) {
	h.c.In(b).GoExpress()
	send := h.sender(b)
	for range 20 { // what is the same as before is used at once
		send("before")
		time.Sleep(5 * time.Millisecond)
	}
	for h.receive(t, 50*time.Millisecond) != "" {
	}
	b.Sh(lab.Device, "sysctl -qw net.ipv4.neigh.eth0.mcast_solicit=100 net.ipv6.neigh.eth0.mcast_solicit=100")
	b.Sh(lab.Edge, h.hold)
	b.Sh(lab.Device, fmt.Sprintf("ip neigh del %v dev eth0", h.addr))
	send("equal")

	before := b.Status().Rules.Generation
	b.Sh(lab.Device, h.drop)
	scontest.Eventually(t, "the rules are read", func() error {
		if s := b.Status(); s.Rules.Generation == before || s.State != "active" {
			return fmt.Errorf("generation %d of the rules, %s", s.Rules.Generation, s.State)
		}
		return nil
	})
	b.Sh(lab.Edge, h.release) // the kernel asks again
	got := ""
	for end := time.Now().Add(scontest.Patience); got == "" && time.Now().Before(end); {
		send("equal") // all the time: the programs search for what entered just now
		got = h.receive(t, time.Millisecond)
	}
	if got != "equal" {
		t.Fatalf("received %q, want the packet that was held back", got)
	}
	for range 20 {
		send("later")
		time.Sleep(5 * time.Millisecond)
	}
	if got = h.receive(t, 200*time.Millisecond); got != "" {
		t.Errorf("received %q past the new rule", got)
	}
}

// sender returns a function that sends a datagram; over IPv4 with the id 0.
func (h held) sender(b *scontest.Bed) func(payload string) {
	if h.addr.Is6() {
		return func(payload string) {
			if _, err := h.c.Client.Write([]byte(payload)); err != nil {
				b.T.Fatal(err)
			}
		}
	}
	w, to := b.OpenWire(lab.Container(1)), b.BridgeMAC()
	src := netip.MustParseAddrPort(h.c.Client.LocalAddr().String())
	dst := netip.MustParseAddrPort(h.c.Client.RemoteAddr().String())
	return func(payload string) {
		w.Send(withChecksum(scontest.Frame(to, w.Iface.HardwareAddr, src, dst, payload)))
	}
}

// withChecksum adds the UDP checksum to a frame: a tunnel needs it for that of its own.
func withChecksum(f []byte) []byte {
	datagram := f[scontest.UDPAt:]
	sum := uint32(unix.IPPROTO_UDP + len(datagram))
	for i, b := range f[scontest.UDPAt-8:] { // from the addresses on
		sum += uint32(b) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(datagram[6:], ^uint16(sum))
	return f
}

// receive returns the next datagram at the server, "" if there is none in time.
func (h held) receive(t *testing.T, patience time.Duration) string {
	buf := make([]byte, 2048)
	if err := h.c.Server.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	n, err := h.c.Server.Read(buf)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return string(buf[:n])
}
