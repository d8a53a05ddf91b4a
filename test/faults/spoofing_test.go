package faults

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// TCP flags.
const (
	fin = 1 << iota
	syn
	rst
	_
	ack
)

// Packets that another container forges with a connection's tuple and any MAC address
// end neither its Conentry nor the connection.
func TestForgedEnd(t *testing.T) {
	t.Parallel()
	b := newExpress(t, scontest.Layout{Containers: 2})
	b.Sh(lab.Device, "sysctl -q net.netfilter.nf_conntrack_tcp_timeout_close=2")
	forger := b.OpenWire(lab.Container(2))
	for name, connect := range scontest.Directions {
		for flags, what := range map[byte]string{fin | ack: "FIN", syn: "SYN", rst: "RST", rst | ack: "RST and ACK"} {
			t.Run(name+" "+what, func(t *testing.T) {
				b := b.In(t)
				c := connect(b, "tcp", 1).GoExpress()
				before := c.MustFlow()
				inside, outside := containerTuple(b, before.Orig.Src == lab.ContainerAddr(1).String(), c)
				for _, mac := range []net.HardwareAddr{forger.Iface.HardwareAddr, containerMAC(b, 1)} {
					for range 5 {
						forger.Send(segment(b.BridgeMAC(), mac, inside, outside, flags))
					}
				}
				learnMAC(b)
				wantSame(c, before.AgeMS)
				c.MustPing(10)
			})
		}
	}
}

// Conntrack, which SCON makes liberal, accepts a forged end of a connection. SCON
// restores conntrack's state when the connection becomes idle.
func TestForgedEndIsReverted(t *testing.T) {
	t.Parallel()
	b := newExpress(t, scontest.Layout{Containers: 2})
	forger := b.OpenWire(lab.Container(2))
	c := b.Incoming("tcp", 1).GoExpress()
	inside, outside := containerTuple(b, false, c)
	for range 5 {
		forger.Send(segment(b.BridgeMAC(), forger.Iface.HardwareAddr, inside, outside, fin|ack))
	}
	list := fmt.Sprintf("conntrack -L -p tcp --reply-port-src %d", inside.Port())
	if out := b.Sh(lab.Device, list); strings.Contains(out, "ESTABLISHED") {
		t.Fatalf("the forged FIN did not change conntrack's state: %s", out)
	}
	scontest.Eventually(t, "conntrack's state is restored", func() error {
		c.MustPing(1)
		time.Sleep(5 * time.Second / 2) // the connection is idle
		if out := b.Sh(lab.Device, list); !strings.Contains(out, "ESTABLISHED") {
			return errors.New(out)
		}
		return nil
	})
	c.MustPing(10)
}

// The decision for a packet that arrives from one bridge is not applied to the same
// packet from another bridge: if rules let one of two cooperating containers send and
// not the other, no packet of the latter passes.
func TestForgedDecision(t *testing.T) {
	t.Parallel()
	docker1 := net.HardwareAddr{0x02, 0x42, 0xac, 0x12, 0, 1}
	for _, to := range []string{lab.Edge, lab.Container(3)} {
		t.Run("to "+to, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, scontest.Layout{Containers: 3})
			b.Sh(lab.Device, fmt.Sprintf(`
				ip link add docker1 address %v type bridge
				ip link set docker1 up
				ip link set veth2 master docker1
				sysctl -q net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.docker1.rp_filter=0
				iptables-nft -I DOCKER-USER -i docker1 -j ACCEPT`, docker1))
			b.Up()
			server, hop := lab.EdgeAddr, b.BridgeMAC()
			if to != lab.Edge {
				server, hop = lab.ContainerAddr(3), containerMAC(b, 3)
			}
			c := b.Connect("udp", lab.Container(1), to, netip.AddrPortFrom(server, 0)).GoExpress()
			src, dst := containerTuple(b, true, c)
			sender, other, receiver := b.OpenWire(lab.Container(1)), b.OpenWire(lab.Container(2)), b.OpenWire(to)

			before := b.Status().Rules.Generation
			b.Sh(lab.Device, "iptables-nft -I DOCKER-USER -i docker0 -p udp -j DROP")
			scontest.Eventually(t, "the daemon has processed the rule", func() error {
				if b.Status().Rules.Generation == before {
					return errors.New("not yet")
				}
				return nil
			})
			for range 200 {
				sender.Send(scontest.Frame(hop, sender.Iface.HardwareAddr, src, dst, "may not"))
				other.Send(scontest.Frame(docker1, other.Iface.HardwareAddr, src, dst, "may, so"))
				time.Sleep(2 * time.Millisecond)
			}
			got := make(map[string]int)
			scontest.Eventually(t, "the last permitted packet arrives", func() error {
				for _, p := range receiver.Arrived(func(f []byte) bool { return len(f) > scontest.UDPAt+8 }) {
					got[string(p.Data[scontest.UDPAt+8:])]++
				}
				if got["may, so"] < 200 {
					return fmt.Errorf("%v", got)
				}
				return nil
			})
			if n := got["may not"]; n != 0 {
				t.Errorf("%d forbidden packets arrive", n)
			}
		})
	}
}

// Of two containers on one bridge, only one may send: rules or the bridge drop what
// comes by the other one's port. It sends under that one's address, each packet in the
// memory of one that was just dropped. None of the dropped ones passes.
func TestForgedDecisionOfPort(t *testing.T) {
	t.Parallel()
	for name, forbid := range map[string]string{
		"bridge": `
			nft add table bridge t
			nft add chain bridge t c { type filter hook prerouting priority 0 ; }
			nft add rule bridge t c iifname veth1 ip protocol udp drop`,
		"netdev": `
			nft add table netdev t
			nft add chain netdev t c { type filter hook ingress device veth1 priority 0 ; }
			nft add rule netdev t c ip protocol udp drop`,
		"locked port": `
			bridge link set dev veth1 locked on
			ip link set veth1 type bridge_slave fdb_flush`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newExpress(t, scontest.Layout{Containers: 2})
			c := b.Connect("udp", lab.Container(1), lab.Edge, netip.AddrPortFrom(lab.EdgeAddr, 0)).GoExpress()
			src, dst := containerTuple(b, true, c)
			sender, other, receiver := b.OpenWire(lab.Container(1)), b.OpenWire(lab.Container(2)), b.OpenWire(lab.Edge)
			transactions := uint32(strings.Count(forbid, "nft add"))
			before := b.Status().Rules.Generation
			b.Sh(lab.Device, forbid)
			settle(b)
			scontest.Eventually(t, "the daemon has processed the change", func() error {
				if s := b.Status(); s.Rules.Generation < before+transactions || s.State != "active" {
					return fmt.Errorf("rules %d, were %d; %s", s.Rules.Generation, before, s.State)
				}
				return nil
			})
			onOneCPU(t)
			const count = 100
			hop := b.BridgeMAC()
			for range count {
				sender.Send(scontest.Frame(hop, sender.Iface.HardwareAddr, src, dst, "may not"))
				other.Send(scontest.Frame(hop, other.Iface.HardwareAddr, src, dst, "may, so"))
				time.Sleep(2 * time.Millisecond) // a decision is used from the next jiffy on
			}
			got := make(map[string]int)
			scontest.Eventually(t, "the last permitted packet arrives", func() error {
				for _, p := range receiver.Arrived(func(f []byte) bool { return len(f) > scontest.UDPAt+8 }) {
					got[string(p.Data[scontest.UDPAt+8:])]++
				}
				if got["may, so"] < count {
					return fmt.Errorf("%v", got)
				}
				return nil
			})
			if n := got["may not"]; n != 0 {
				t.Errorf("%d forbidden packets arrive", n)
			}
		})
	}
}

// A container sends packets of one connection on two CPUs, while decisions become stale
// again and again: some that pass, and some with a DSCP that a rule drops. The decision
// about one of the former is never that of one of the latter.
func TestForgedIdentity(t *testing.T) {
	t.Parallel()
	b := newExpress(t, scontest.Layout{})
	b.Sh(lab.Device, "iptables-nft -I FORWARD -p udp -m dscp --dscp 10 -j DROP")
	c := b.Connect("udp", lab.Container(1), lab.Edge, netip.AddrPortFrom(lab.EdgeAddr, 0)).GoExpress()
	src, dst := containerTuple(b, true, c)
	sender, receiver := b.OpenWire(lab.Container(1)), b.OpenWire(lab.Edge)
	may := scontest.Frame(b.BridgeMAC(), sender.Iface.HardwareAddr, src, dst, "may, so")
	mayNot := scontest.Frame(b.BridgeMAC(), sender.Iface.HardwareAddr, src, dst, "may not")
	mayNot[scontest.IPAt+1] = 10 << 2
	fixIP(mayNot)
	got := make(map[string]int)
	receive := func() {
		for _, p := range receiver.Arrived(func(f []byte) bool { return len(f) > scontest.UDPAt+8 }) {
			got[string(p.Data[scontest.UDPAt+8:])]++
		}
	}
	var done atomic.Bool
	var senders sync.WaitGroup
	for _, frame := range [][]byte{may, mayNot} {
		senders.Go(func() {
			for !done.Load() {
				sender.Send(frame)
			}
		})
	}
	for range 500 {
		b.Sh(lab.Device, `
			ip rule add pref 500 lookup main
			ip rule del pref 500`)
		receive()
	}
	done.Store(true)
	senders.Wait()
	receive()
	if got["may, so"] == 0 || got["may not"] != 0 {
		t.Errorf("%d permitted and %d forbidden packets arrive", got["may, so"], got["may not"])
	}
}

// A host of the underlay whose packets INPUT drops sends a segment of a connection that
// comes by VXLAN; another one sends the same segment, in outer fragments, whose headers
// the programs do not read. The former's outer headers become no decision.
func TestForgedOuterHeaders(t *testing.T) {
	t.Parallel()
	b := newExpress(t, scontest.Layout{Overlay: lab.OverlayFlannel})
	c := b.Connect("tcp", lab.Container(1), lab.Edge, netip.AddrPortFrom(lab.FlannelEdge, 0))
	c.MustPing(50)
	underlay, edge, inside := b.OpenWire(lab.Device), b.OpenWire(lab.Edge), b.OpenWire(lab.Container(1))
	const innerIP, innerTCP = scontest.UDPAt + 8 + 8 + 14, 20
	c.MustPing(1)
	segment := underlay.Receive(func(f []byte) bool { // from edge, with data
		return len(f) > innerIP+20+innerTCP+12 && f[scontest.IPAt+9] == unix.IPPROTO_UDP && f[innerIP+9] == unix.IPPROTO_TCP
	})
	segment = slices.Clone(segment)
	binary.BigEndian.PutUint16(segment[scontest.UDPAt+6:], 0) // no outer checksum
	forbidden := slices.Clone(segment)
	forbidden[scontest.IPAt+15] = 99 // another host's address
	fixIP(forbidden)

	before := b.Status().Generation
	b.Sh(lab.Device, "iptables-nft -I INPUT -s 10.77.0.99 -p udp --dport 8472 -j DROP")
	scontest.Eventually(t, "the daemon has processed the rule", func() error {
		if s := b.Status(); s.Generation == before || s.State != "active" {
			return fmt.Errorf("generation %d, %s", s.Generation, s.State)
		}
		return nil
	})
	data := segment[innerIP+20:]
	arrived := func() int {
		return len(inside.Arrived(func(f []byte) bool {
			return len(f) >= scontest.IPAt+20+len(data) && string(f[scontest.IPAt+24:scontest.IPAt+28]) == string(data[4:8])
		}))
	}
	inside.Skip()
	const count = 50
	permitted := 0
	for range count {
		edge.Send(forbidden)
		for _, f := range inFragments(segment) {
			edge.Send(f)
		}
		time.Sleep(5 * time.Millisecond)
		permitted += arrived()
	}
	scontest.Eventually(t, "the last permitted segment arrives", func() error {
		if permitted += arrived(); permitted < count {
			return fmt.Errorf("%d segments", permitted)
		}
		return nil
	})
	if permitted > count {
		t.Errorf("%d forbidden segments arrive", permitted-count)
	}
}

// inFragments returns an IPv4 packet in two fragments.
func inFragments(f []byte) [2][]byte {
	const first = 64
	a, b := slices.Clone(f[:scontest.UDPAt+first]), slices.Concat(f[:scontest.UDPAt], f[scontest.UDPAt+first:])
	for i, f := range [2][]byte{a, b} {
		binary.BigEndian.PutUint16(f[scontest.IPAt+2:], uint16(len(f)-scontest.IPAt))
		binary.BigEndian.PutUint16(f[scontest.IPAt+6:], [2]uint16{1 << 13, first / 8}[i])
		fixIP(f)
	}
	return [2][]byte{a, b}
}

// fixIP corrects the checksum of a frame's IPv4 header.
func fixIP(f []byte) {
	ip := f[scontest.IPAt:scontest.UDPAt]
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^sum(ip, 0))
}

// onOneCPU keeps the test on one CPU: the kernel uses the memory of a packet that was
// dropped for the next one of that CPU.
func onOneCPU(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // the thread ends with the test's goroutine
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	cpu := 0
	for !all.IsSet(cpu) {
		cpu++
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
}

// containerTuple returns a connection's tuple as its container sends it.
func containerTuple(b *scontest.Bed, initiator bool, c *scontest.Connection) (src, dst netip.AddrPort) {
	of := func(a net.Addr) netip.AddrPort { return netip.MustParseAddrPort(a.String()) }
	if initiator {
		return of(c.Client.LocalAddr()), of(c.Client.RemoteAddr())
	}
	return of(c.Server.LocalAddr()), of(c.Server.RemoteAddr())
}

// wantSame fails unless a connection is express with the same Conentry as before.
func wantSame(c *scontest.Connection, ageMS int64) {
	c.B.T.Helper()
	f, err := c.Flow()
	if err != nil {
		c.B.T.Errorf("forged packets have ended the Conentry: %v", err)
		return
	}
	if f.AgeMS < ageMS {
		c.B.T.Errorf("forged packets have ended the Conentry: it is %d ms old, before %d", f.AgeMS, ageMS)
	}
	c.GoExpress()
}

// learnMAC makes the bridge learn the port of container 1 again.
func learnMAC(b *scontest.Bed) {
	b.T.Helper()
	b.Sh(lab.Container(1), "ping -c 1 -W 1 172.17.0.1")
}

// containerMAC returns the MAC address of a container's eth0.
func containerMAC(b *scontest.Bed, n int) net.HardwareAddr {
	b.T.Helper()
	return b.OpenWire(lab.Container(n)).Iface.HardwareAddr
}

// segment returns an empty TCP segment with an unexpected sequence number.
func segment(to, from net.HardwareAddr, src, dst netip.AddrPort, flags byte) []byte {
	return segmentAt(to, from, src, dst, flags, 0xdeadbeef, 0xdeadbeef)
}

// segmentAt is segment with the numbers of the first byte and of the next one expected.
func segmentAt(to, from net.HardwareAddr, src, dst netip.AddrPort, flags byte, seq, acked uint32) []byte {
	payload := make([]byte, 12)
	f := scontest.Frame(to, from, src, dst, string(payload))
	tcp := f[scontest.UDPAt:]
	f[scontest.IPAt+9] = 6
	binary.BigEndian.PutUint32(tcp[4:], seq)
	binary.BigEndian.PutUint32(tcp[8:], acked)
	tcp[12], tcp[13] = 5<<4, flags
	binary.BigEndian.PutUint16(tcp[14:], 512)
	copy(tcp[16:], []byte{0, 0, 0, 0})
	ip := f[scontest.IPAt:scontest.UDPAt]
	copy(ip[10:], []byte{0, 0})
	binary.BigEndian.PutUint16(ip[10:], ^sum(ip, 0))
	pseudo := append(append([]byte{}, ip[12:20]...), 0, 6, 0, byte(len(tcp)))
	binary.BigEndian.PutUint16(tcp[16:], ^sum(tcp, uint32(sum(pseudo, 0))))
	return f
}

// sum returns the Internet checksum before its inversion.
func sum(b []byte, s uint32) uint16 {
	for i := 0; i < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
