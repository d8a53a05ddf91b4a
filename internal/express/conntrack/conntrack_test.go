package conntrack

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/nstest"
)

// tracked makes a namespace where conntrack is at work on the loopback device
// and 10.9.9.9 port 80 leads to a TCP server there.
func tracked(t *testing.T) (ns string, client *Client) {
	t.Helper()
	ns = nstest.New(t)
	nstest.Run(t, ns, `
		ip addr add 10.9.0.1/32 dev lo
		ip route add 10.9.9.9 dev lo
		iptables -t nat -A OUTPUT -d 10.9.9.9 -p tcp --dport 80 -j DNAT --to-destination 10.9.0.1:8080
		iptables -A INPUT -p tcp ! --tcp-flags RST RST -m conntrack --ctstate INVALID`)
	var err error
	nstest.Do(t, ns, func() { client, err = Open() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return ns, client
}

// connect opens a TCP connection through the DNAT rule and sends a byte, so
// that it is established and assured.
func connect(t *testing.T, ns string) (conn net.Conn, orig, reply Tuple) {
	t.Helper()
	return connectTo(t, ns, "10.9.9.9:80", "10.9.0.1:8080")
}

// connectTo does the same to an address that leads to a server at listen.
func connectTo(t *testing.T, ns, addr, listen string) (conn net.Conn, orig, reply Tuple) {
	t.Helper()
	var l net.Listener
	var err error
	nstest.Do(t, ns, func() {
		if l, err = net.Listen("tcp4", listen); err == nil {
			conn, err = net.Dial("tcp4", addr)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	defer l.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	if _, err := conn.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(server, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	orig = Tuple{
		Proto: unix.IPPROTO_TCP,
		Src:   netip.MustParseAddrPort(conn.LocalAddr().String()),
		Dst:   netip.MustParseAddrPort(addr),
	}
	reply = Tuple{orig.Proto, netip.MustParseAddrPort(listen), orig.Src}
	return conn, orig, reply
}

func TestGetByEitherTuple(t *testing.T) {
	ns, client := tracked(t)
	_, orig, reply := connect(t, ns)
	for name, tuple := range map[string]Tuple{"original": orig, "reply": reply} {
		c, err := client.Get(tuple)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if c.Orig != orig || c.Reply != reply {
			t.Errorf("%s: got %v and %v, want %v and %v", name, c.Orig, c.Reply, orig, reply)
		}
		if !c.Assured() || !c.Confirmed() || c.Dying() || c.TCPState != TCPEstablished {
			t.Errorf("%s: status %#x, TCP state %d; want assured, confirmed, established", name, c.Status, c.TCPState)
		}
		if c.Timeout <= 0 || c.ID == 0 || c.Helper != "" || c.SeqAdj {
			t.Errorf("%s: got %+v", name, c)
		}
	}
	if _, err := client.Get(orig.Reverse()); !errors.Is(err, ErrNotFound) {
		t.Errorf("Get of a tuple that translation hides = %v, want ErrNotFound", err)
	}
}

// Many questions together have the answers that each has alone.
func TestGetAll(t *testing.T) {
	ns, client := tracked(t)
	_, orig, reply := connect(t, ns)
	var tuples []Tuple
	for i := range 3*askedAtOnce + 1 {
		unknown := orig
		unknown.Src = netip.AddrPortFrom(orig.Src.Addr(), uint16(1+i))
		tuples = append(tuples, [...]Tuple{orig, reply, unknown}[i%3])
	}
	answers := client.GetAll(tuples)
	if len(answers) != len(tuples) {
		t.Fatalf("%d answers to %d questions", len(answers), len(tuples))
	}
	for i, a := range answers {
		if i%3 == 2 {
			if !errors.Is(a.Err, ErrNotFound) {
				t.Errorf("%v: %v", tuples[i], a.Err)
			}
		} else if a.Err != nil || a.Conn.Orig != orig || a.Conn.Reply != reply {
			t.Errorf("%v: %+v", tuples[i], a)
		}
	}
	if _, err := client.Get(orig); err != nil {
		t.Error(err)
	}
	if none := client.GetAll(nil); len(none) != 0 {
		t.Errorf("%v to no question", none)
	}
}

func TestGetUDPOverIPv6(t *testing.T) {
	ns, client := tracked(t)
	nstest.Run(t, ns, "ip6tables -A INPUT -m conntrack --ctstate INVALID")
	var conn net.Conn
	var err error
	nstest.Do(t, ns, func() { conn, err = net.Dial("udp6", "[::1]:5353") })
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	want := Tuple{
		Proto: unix.IPPROTO_UDP,
		Src:   netip.MustParseAddrPort(conn.LocalAddr().String()),
		Dst:   netip.MustParseAddrPort("[::1]:5353"),
	}
	c, err := client.Get(want)
	if err != nil || c.Orig != want || c.Reply != want.Reverse() || c.Assured() {
		t.Errorf("Get = %+v, %v; want %v, not assured", c, err, want)
	}
}

func TestMarkAndHelper(t *testing.T) {
	ns, client := tracked(t)
	nstest.Run(t, ns, `
		iptables -t raw -A OUTPUT -p tcp --dport 80 -j CT --helper ftp
		iptables -t mangle -A OUTPUT -p tcp --dport 80 -j CONNMARK --set-mark 7`)
	_, orig, _ := connect(t, ns)
	c, err := client.Get(orig)
	if err != nil || c.Helper != "ftp" || c.Mark != 7 {
		t.Errorf("Get = %+v, %v; want helper ftp, mark 7", c, err)
	}
}

func TestZone(t *testing.T) {
	ns, client := tracked(t)
	nstest.Run(t, ns, `
		iptables -t raw -A OUTPUT -j CT --zone 5
		iptables -t raw -A PREROUTING -j CT --zone 5`)
	_, orig, _ := connect(t, ns)
	var found []Conn
	if err := client.Dump(func(c Conn) {
		if c.Orig == orig {
			found = append(found, c)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || found[0].Zone != 5 {
		t.Fatalf("Dump gave %+v, want one connection in zone 5", found)
	}
	if err := client.UpdateTCP(found[0], TCPUpdate{}); err != nil {
		t.Error(err)
	}
	found[0].Zone = 0
	if err := client.UpdateTCP(found[0], TCPUpdate{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("UpdateTCP in another zone = %v, want ErrNotFound", err)
	}
}

func TestUpdateTCPChangesNothingElse(t *testing.T) {
	ns, client := tracked(t)
	nstest.Run(t, ns, `
		sysctl net.netfilter.nf_conntrack_tcp_timeout_established=1000
		iptables -t mangle -A OUTPUT -p tcp --dport 80 -j CONNMARK --set-mark 7`)
	_, orig, _ := connect(t, ns)
	before, err := client.Get(orig)
	if err != nil {
		t.Fatal(err)
	}
	// Were the timeout renewed, it would be the new one.
	nstest.Run(t, ns, "sysctl net.netfilter.nf_conntrack_tcp_timeout_established=5000")
	if err := client.UpdateTCP(before, TCPUpdate{}); err != nil {
		t.Fatal(err)
	}
	after, err := client.Get(orig)
	if err != nil {
		t.Fatal(err)
	}
	for i, flags := range after.TCPFlags {
		want := before.TCPFlags[i]&^tcpMaxAckSet | tcpBeLiberal
		if flags != want || before.TCPFlags[i]&tcpBeLiberal != 0 {
			t.Errorf("direction %d: flags %#x became %#x, want %#x", i, before.TCPFlags[i], flags, want)
		}
	}
	if before.TCPFlags[0]&tcpMaxAckSet == 0 {
		t.Errorf("flags before: %#x, want the highest acknowledgement set", before.TCPFlags)
	}
	if after.Timeout > 1000*time.Second || after.Timeout < 900*time.Second {
		t.Errorf("timeout is %v, want what is left of 1000 s", after.Timeout)
	}
	after.Timeout, after.TCPFlags = before.Timeout, before.TCPFlags
	if after != before {
		t.Errorf("connection became %+v, was %+v", after, before)
	}
}

func TestUpdateTCPOnMissingConnection(t *testing.T) {
	_, client := tracked(t)
	tuple := Tuple{unix.IPPROTO_TCP, netip.MustParseAddrPort("10.9.0.1:1"), netip.MustParseAddrPort("10.9.0.1:2")}
	if err := client.UpdateTCP(Conn{Orig: tuple, Reply: tuple.Reverse()}, TCPUpdate{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("UpdateTCP = %v, want ErrNotFound", err)
	}
}

func TestLiberalConnectionTakesAnySequenceNumber(t *testing.T) {
	ns, client := tracked(t)
	_, orig, reply := connect(t, ns)
	sendStraySegments(t, ns, reply)
	before := invalidIn(t, ns)
	if before == "0" {
		t.Fatal("no segment was INVALID before UpdateTCP, want those beyond the window")
	}
	c, err := client.Get(orig)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.UpdateTCP(c, TCPUpdate{}); err != nil {
		t.Fatal(err)
	}
	sendStraySegments(t, ns, reply)
	if after := invalidIn(t, ns); after != before {
		t.Errorf("%s segments INVALID after UpdateTCP, want %s as before", after, before)
	}
}

// A connection that was made liberal is listed as such, and can be deleted; another
// one with the same tuples is not deleted in its place.
func TestDeleteLiberal(t *testing.T) {
	ns, client := tracked(t)
	_, orig, _ := connect(t, ns)
	c, err := client.Get(orig)
	if err != nil || c.Liberal() {
		t.Fatalf("Get = %+v, %v; want one that is not liberal", c, err)
	}
	if err := client.UpdateTCP(c, TCPUpdate{}); err != nil {
		t.Fatal(err)
	}
	if c, err = client.Get(orig); err != nil || !c.Liberal() {
		t.Fatalf("Get = %+v, %v; want a liberal one", c, err)
	}
	other := c
	other.ID++
	if err := client.Delete(other); !errors.Is(err, ErrNotFound) {
		t.Errorf("Delete with another ID = %v, want ErrNotFound", err)
	}
	if err := client.Delete(c); err != nil {
		t.Fatal(err)
	}
	if err := client.Delete(c); !errors.Is(err, ErrNotFound) {
		t.Errorf("Delete again = %v, want ErrNotFound", err)
	}
	if _, err := client.Get(orig); !errors.Is(err, ErrNotFound) {
		t.Errorf("Get after Delete = %v, want ErrNotFound", err)
	}
}

// invalidIn returns how many segments the rule of tracked has counted.
func invalidIn(t *testing.T, ns string) string {
	t.Helper()
	rows := strings.Split(nstest.Run(t, ns, "iptables -nvxL INPUT"), "\n")
	return strings.Fields(rows[2])[0]
}

// sendStraySegments sends TCP segments with sequence numbers out of the blue.
// Of two that are half the space apart one is beyond any window, and so for
// acknowledgements.
func sendStraySegments(t *testing.T, ns string, tuple Tuple) {
	t.Helper()
	src, dst := tuple.Src.Addr().As4(), tuple.Dst.Addr().As4()
	nstest.Do(t, ns, func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		for _, seq := range []uint32{0x12345678, 0x92345678} {
			for _, ack := range []uint32{0x0fedcba9, 0x8fedcba9} {
				p := make([]byte, 40)
				p[0], p[8], p[9] = 0x45, 64, unix.IPPROTO_TCP
				copy(p[12:], src[:])
				copy(p[16:], dst[:])
				tcp := p[20:]
				binary.BigEndian.PutUint16(tcp, tuple.Src.Port())
				binary.BigEndian.PutUint16(tcp[2:], tuple.Dst.Port())
				binary.BigEndian.PutUint32(tcp[4:], seq)
				binary.BigEndian.PutUint32(tcp[8:], ack)
				tcp[12], tcp[13] = 5<<4, 0x10 // five words, ACK
				binary.BigEndian.PutUint16(tcp[16:], checksum(p[12:]))
				if err := unix.Sendto(fd, p, 0, &unix.SockaddrInet4{Addr: dst}); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// checksum is TCP's over the addresses and a segment of even length. (That of
// the IP header the kernel fills in.)
func checksum(b []byte) uint16 {
	sum := uint32(unix.IPPROTO_TCP) + uint32(len(b)-8)
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func TestDumpLeavesOutOtherProtocols(t *testing.T) {
	ns, client := tracked(t)
	_, orig, _ := connect(t, ns)
	nstest.Run(t, ns, "ping -c 1 10.9.0.1")
	if out := nstest.Run(t, ns, "conntrack -L"); !strings.Contains(out, "icmp") {
		t.Fatalf("no ICMP in the table: %s", out)
	}
	var got []Tuple
	if err := client.Dump(func(c Conn) { got = append(got, c.Orig) }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0] != orig {
		t.Errorf("Dump gave %v, want %v alone", got, orig)
	}
}

func TestTupleString(t *testing.T) {
	tuple := Tuple{unix.IPPROTO_UDP, netip.MustParseAddrPort("10.0.0.1:5"), netip.MustParseAddrPort("10.0.0.2:53")}
	if got, want := tuple.String(), "udp 10.0.0.1:5 > 10.0.0.2:53"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Of several tuples those of TCP are made liberal, whichever direction they are of, and
// each is answered for itself; one that conntrack does not know keeps the others from nothing.
func TestMakeLiberal(t *testing.T) {
	ns, client := tracked(t)
	_, orig, reply := connect(t, ns)
	_, other, _ := connect(t, ns)
	_, untouched, _ := connect(t, ns)
	unknown := orig
	unknown.Src = netip.AddrPortFrom(orig.Src.Addr(), 9)
	datagrams := send(t, ns)

	answers := client.MakeLiberal([]Tuple{unknown, reply, datagrams, other})
	if err := answers[0].Err; !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown: %v", err)
	}
	for i, want := range []Tuple{1: orig, 2: datagrams, 3: other} {
		if a := answers[i]; i > 0 && (a.Err != nil || a.Conn.Orig != want || a.Conn.Liberal() != (want.Proto == unix.IPPROTO_TCP)) {
			t.Errorf("%v: %+v", want, a)
		}
	}
	if c, err := client.Get(untouched); err != nil || c.Liberal() {
		t.Errorf("another connection: liberal %v, %v", c.Liberal(), err)
	}
}
