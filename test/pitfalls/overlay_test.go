package pitfalls

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// flannelConnections returns connections between container 1 and edge through the flannel
// overlay, opened from either side.
func flannelConnections(b *scontest.Bed, proto string) map[string]*scontest.Connection {
	b.T.Helper()
	p := lab.Publications(1)[0]
	return map[string]*scontest.Connection{
		"outgoing " + proto: b.Connect(proto, lab.Container(1), lab.Edge, netip.AddrPortFrom(lab.FlannelEdge, 0)),
		"incoming " + proto: b.ConnectTo(proto, lab.Edge, lab.Container(1), netip.AddrPortFrom(lab.FlannelDeviceAddr, p.Device), p.Container, 0),
	}
}

// skipped sends pings until nearly all packets bypass flannel.1 in both directions.
func skipped(c *scontest.Connection) {
	t := c.B.T
	t.Helper()
	const count = 50
	scontest.Eventually(t, "packets skip "+lab.Flannel, func() error {
		before := passed(c.B, lab.Flannel)
		c.MustPing(count)
		after := passed(c.B, lab.Flannel)
		for i, dir := range []string{"into the container", "out of it"} {
			if n := after[i] - before[i]; n > count/5 {
				return fmt.Errorf("%d packets passed flannel.1 %s", n, dir)
			}
		}
		return nil
	})
}

// passed returns the packets that a device of node device has received and
// sent.
func passed(b *scontest.Bed, dev string) (packets [2]uint64) {
	b.T.Helper()
	err := b.Do(lab.Device, func() error {
		link, err := netlink.LinkByName(dev)
		if err == nil {
			packets = [2]uint64{link.Attrs().Statistics.RxPackets, link.Attrs().Statistics.TxPackets}
		}
		return err
	})
	if err != nil {
		b.T.Fatal(err)
	}
	return packets
}

// outer are the outer headers of a VXLAN packet.
type outer struct {
	src, dst   netip.Addr
	tos, ttl   byte
	sport      uint16
	flags, vni uint32
	inner      []byte // frame
}

// readOuter parses a VXLAN frame to a port. Any incorrect outer header is an
// error.
func readOuter(frame []byte, port uint16) (o outer, carries bool, err error) {
	if len(frame) < vxlanAt+8+scontest.UDPAt || !isUDP(frame) || binary.BigEndian.Uint16(frame[scontest.UDPAt+2:]) != port {
		return o, false, nil
	}
	ip, udp, vxlan := frame[scontest.IPAt:], frame[scontest.UDPAt:], frame[vxlanAt:]
	o = outer{
		src: netip.AddrFrom4([4]byte(ip[12:])), dst: netip.AddrFrom4([4]byte(ip[16:])),
		tos: ip[1], ttl: ip[8], sport: binary.BigEndian.Uint16(udp),
		flags: binary.BigEndian.Uint32(vxlan), vni: binary.BigEndian.Uint32(vxlan[4:]) >> 8,
		inner: vxlan[8:],
	}
	switch {
	case onesSum(0, ip[:20]) != 0xffff:
		err = errors.New("the IP header has a wrong checksum")
	case int(binary.BigEndian.Uint16(ip[2:])) != len(ip):
		err = fmt.Errorf("the IP header has the length %d", binary.BigEndian.Uint16(ip[2:]))
	case int(binary.BigEndian.Uint16(udp[4:])) != len(udp):
		err = fmt.Errorf("the UDP header has the length %d", binary.BigEndian.Uint16(udp[4:]))
	case binary.BigEndian.Uint16(udp[6:]) != 0 && udpSum(zeroSum(frame)) != binary.BigEndian.Uint16(udp[6:]):
		err = fmt.Errorf("the UDP header has the checksum %#x", binary.BigEndian.Uint16(udp[6:]))
	case o.inner[12] != 0x08 || o.inner[13] != 0 || onesSum(0, o.inner[scontest.IPAt:scontest.UDPAt]) != 0xffff:
		err = errors.New("the inner packet is not IPv4 or its header has a wrong checksum")
	case scontest.IPAt+int(binary.BigEndian.Uint16(o.inner[scontest.IPAt+2:])) != len(o.inner):
		err = fmt.Errorf("the inner packet has %d bytes, its header %d", len(o.inner), binary.BigEndian.Uint16(o.inner[scontest.IPAt+2:]))
	}
	return o, true, err
}

// zeroSum returns a UDP packet without its checksum.
func zeroSum(frame []byte) []byte {
	f := slices.Clone(frame)
	f[scontest.UDPAt+6], f[scontest.UDPAt+7] = 0, 0
	return f
}

// innerPort returns the destination port of the inner packet.
func (o outer) innerPort() uint16 { return binary.BigEndian.Uint16(o.inner[scontest.UDPAt+2:]) }

// outers returns the outer headers of a flannel connection's packets to edge's port
// since the last call. Checksums are incomplete if devices compute them.
func outers(w *scontest.Wire, c *scontest.Connection) (all []outer) {
	c.B.T.Helper()
	for _, p := range w.Arrived(func([]byte) bool { return true }) {
		o, carries, err := readOuter(p.Data, 8472)
		if !carries || o.innerPort() != scontest.PortOf(c.Server.LocalAddr()) {
			continue
		}
		if err != nil && c.B.Opts.NoOffload {
			c.B.T.Errorf("a packet of %d bytes on the wire: %v", len(p.Data), err)
		}
		all = append(all, o)
	}
	return all
}

// Traffic through flannel's VXLAN is express in both directions and has the same form
// on the wire as the kernel's.
func TestFlannel(t *testing.T) {
	t.Parallel()
	for _, offload := range []bool{false, true} {
		t.Run(fmt.Sprintf("offload %v", offload), func(t *testing.T) {
			b := scontest.NewExpress(t, scontest.Layout{Offload: offload, Overlay: lab.OverlayFlannel})
			for _, proto := range []string{"tcp", "udp"} {
				for name, c := range flannelConnections(b, proto) {
					skipped(c.GoExpress())
					c.Exchange(2 << 20)
					if f := c.MustFlow(); f.Oif != lab.Flannel || f.Overlay != lab.Uplink {
						t.Errorf("%s leaves by %q over %q", name, f.Oif, f.Overlay)
					}
					if name != "outgoing "+proto {
						continue
					}
					wire := b.OpenWire(lab.Edge)
					c.MustPing(50)
					all := outers(wire, c)
					if len(all) < 50 {
						t.Errorf("%s: %d packets on the wire", name, len(all))
					}
					for _, o := range all {
						first := all[0]
						if o.src != lab.DeviceAddr || o.dst != lab.EdgeAddr || o.vni != 1 || o.flags != 0x08000000 ||
							o.ttl != 64 || o.tos != 0 || o.sport != first.sport {
							t.Errorf("%s: outer headers %+v", name, o)
						}
					}
				}
			}
			b.WantNoInvalid()
		})
	}
}

// Changes by the overlay's agent apply at once: a MAC address moves to another machine,
// and a machine's IP address changes.
func TestFlannelAgent(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Overlay: lab.OverlayFlannel})
	b.Sh(lab.Edge, "ip addr add 10.77.0.3/24 dev eth0")
	mac := hardwareAddr(b, lab.Edge, lab.Flannel).String()
	for _, proto := range []string{"tcp", "udp"} {
		c := flannelConnections(b, proto)["outgoing "+proto]
		wire := b.OpenWire(lab.Edge)
		want := lab.EdgeAddr
		for i, to := range []string{"10.77.0.3", "10.77.0.2"} {
			skipped(c.GoExpress())
			_ = outers(wire, c)
			c.MustPing(10)
			if all := outers(wire, c); slices.ContainsFunc(all, func(o outer) bool { return o.dst != want }) {
				t.Errorf("%s, %d: packets to others than %v: %+v", proto, i, want, all)
			}
			b.Sh(lab.Device, "bridge fdb replace "+mac+" dev "+lab.Flannel+" dst "+to+" self permanent")
			want = netip.MustParseAddr(to)
			scontest.Eventually(t, "packets go to "+to, func() error {
				_ = outers(wire, c)
				c.MustPing(1)
				for _, o := range outers(wire, c) {
					if o.dst != want {
						return fmt.Errorf("%v", o.dst)
					}
				}
				return nil
			})
		}
	}
	b.WantNoInvalid()
}

// Without an FDB entry for a MAC address, each packet to it reaches every machine of
// the overlay.
func TestFlannelTwoMachines(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Overlay: lab.OverlayFlannel})
	const second = "10.77.0.9" // unused address
	b.Sh(lab.Device, "ip neigh replace "+second+" lladdr "+hardwareAddr(b, lab.Edge, lab.Uplink).String()+" dev eth0 nud permanent")
	c := flannelConnections(b, "udp")["outgoing udp"]
	skipped(c.GoExpress())
	wire := b.OpenWire(lab.Edge)
	const anyMAC = "bridge fdb append 00:00:00:00:00:00 dev " + lab.Flannel + " dst "
	b.Sh(lab.Device, anyMAC+lab.EdgeAddr.String()+" self permanent\n"+anyMAC+second+" self permanent\n"+
		"bridge fdb del "+hardwareAddr(b, lab.Edge, lab.Flannel).String()+" dev "+lab.Flannel+" dst "+lab.EdgeAddr.String()+" self")
	both := func(count int) error {
		_ = outers(wire, c)
		c.MustPing(count)
		to := make(map[netip.Addr]int)
		for _, o := range outers(wire, c) {
			to[o.dst]++
		}
		if to[lab.EdgeAddr] != count || to[netip.MustParseAddr(second)] != count {
			return fmt.Errorf("of %d packets these arrived: %v", count, to)
		}
		return nil
	}
	scontest.Eventually(t, "both machines get packets", func() error { return both(1) })
	for range 5 {
		if err := both(20); err != nil {
			t.Error(err)
		}
		time.Sleep(20 * time.Millisecond) // some jiffies
	}
}

// stops checks that no packet of a connection arrives after a command, nor
// after a second one.
func stops(c *scontest.Connection, command, back string) {
	t := c.B.T
	t.Helper()
	skipped(c.GoExpress())
	c.B.Sh(lab.Device, command)
	buf := make([]byte, 1500)
	silence := func() error {
		for _, e := range c.Ends() {
			for err := error(nil); err == nil; { // discard earlier packets
				_ = e[1].SetReadDeadline(time.Now().Add(20 * time.Millisecond))
				_, err = e[1].Read(buf)
			}
			if _, err := e[0].Write([]byte("x")); err != nil && !scontest.Refused(err) {
				return err
			}
			_ = e[1].SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			if _, err := e[1].Read(buf); errors.Is(err, os.ErrDeadlineExceeded) {
				return nil // one direction is enough
			}
		}
		return errors.New("packets arrive in both directions")
	}
	scontest.Eventually(t, "traffic stops after "+command, silence)
	for range 5 {
		if err := silence(); err != nil {
			t.Errorf("%s: %v", command, err)
		}
	}
	c.B.Sh(lab.Device, back)
	scontest.Eventually(t, "traffic continues after "+back, func() error {
		if _, err := c.Client.Write([]byte("x")); err != nil {
			return err
		}
		_ = c.Server.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		_, err := c.Server.Read(buf)
		return err
	})
	for _, e := range c.Ends() { // packets in flight
		for err := error(nil); err == nil; {
			_ = e[1].SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			_, err = e[1].Read(buf)
		}
	}
}

// Rules for the outer packets apply in both directions, and so do rules for the inner
// packets.
func TestFlannelRules(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Overlay: lab.OverlayFlannel})
	b.Sh(lab.Device, `
		nft add table ip outer
		nft add chain ip outer out { type filter hook output priority 0 ; }
		nft add chain ip outer in { type filter hook input priority 0 ; }
		nft add chain ip outer pre { type filter hook prerouting priority -250 ; }
		nft add chain ip outer through { type filter hook forward priority 0 ; }`)
	c := flannelConnections(b, "udp")["outgoing udp"]
	for chain, rule := range map[string]string{
		"out":     "udp dport 8472 drop",
		"in":      "udp dport 8472 drop",
		"pre":     "ip saddr 10.77.0.2 udp dport 8472 drop",
		"through": "oifname flannel.1 drop",
	} {
		t.Run(chain, func(t *testing.T) {
			stops(c.In(b.In(t)), "nft add rule ip outer "+chain+" "+rule, "nft flush chain ip outer "+chain)
		})
	}
}

// A rate limit on the outer packets applies to all of them.
func TestFlannelLimit(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Overlay: lab.OverlayFlannel})
	b.Sh(lab.Device, `
		nft add table ip outer
		nft add chain ip outer out { type filter hook output priority 0 ; }
		nft add chain ip outer in { type filter hook input priority 0 ; }
		nft add rule ip outer out udp dport 8472 quota over 1000 mbytes drop
		nft add counter ip outer sent
		nft add rule ip outer out udp dport 8472 counter name sent
		nft add rule ip outer in udp dport 8472 quota over 1000 mbytes drop
		nft add counter ip outer got
		nft add rule ip outer in udp dport 8472 counter name got`)
	c := flannelConnections(b, "udp")["outgoing udp"].GoExpress()
	const count = 100
	before := [2]uint64{counted(b, "sent"), counted(b, "got")}
	c.MustPing(count)
	for i, name := range []string{"sent", "got"} {
		if n := counted(b, name) - before[i]; n < count {
			t.Errorf("the rules have counted %d packets of %d %s", n, count, name)
		}
	}
}

// counted returns the packet count of a counter in table outer of node device.
func counted(b *scontest.Bed, name string) (packets uint64) {
	b.T.Helper()
	out := b.Sh(lab.Device, "nft list counter ip outer "+name)
	_, count, _ := strings.Cut(out, "packets ")
	if _, err := fmt.Sscan(count, &packets); err != nil {
		b.T.Fatalf("read a counter: %v:\n%s", err, out)
	}
	return packets
}

// Offsets in an encapsulated packet.
const (
	vxlanAt = scontest.UDPAt + 8
	innerAt = vxlanAt + 8
)

// mendOuter recomputes the checksums after a change of headers.
func mendOuter(f []byte) {
	for _, ip := range [][]byte{f[innerAt+scontest.IPAt:][:20], f[scontest.IPAt:][:20]} {
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], ^onesSum(0, ip))
	}
	mendUDP(f)
}

// A tunnelled packet reaches the container if and only if the kernel would decapsulate
// it, and in the same form, express or not.
func TestFlannelDecapsulation(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Overlay: lab.OverlayFlannel})
	c := flannelConnections(b, "udp")["outgoing udp"]
	skipped(c.GoExpress())
	arriving, sending := b.OpenWire(lab.Device), b.OpenWire(lab.Edge)
	intact := func() []byte {
		arriving.Skip()
		c.MustPing(1)
		return arriving.Receive(func(f []byte) bool {
			_, carries, err := readOuter(f, 8472)
			return carries && err == nil
		})
	}()
	inside := b.OpenWire(lab.Container(1))
	const ce, ect0, ect1 = 3, 2, 1
	ecn := func(outer, inner byte) func([]byte) {
		return func(f []byte) { f[scontest.IPAt+1], f[innerAt+scontest.IPAt+1] = outer, inner }
	}
	for name, k := range map[string]struct {
		change  func([]byte)
		broken  bool // leave the checksums as they are
		refused bool
		ecn     byte // expected bits of the inner packet
	}{
		"intact":                    {change: func([]byte) {}},
		"another network":           {change: func(f []byte) { f[vxlanAt+6] = 2 }, refused: true},
		"a reserved flag":           {change: func(f []byte) { f[vxlanAt] |= 0x04 }, refused: true},
		"no network":                {change: func(f []byte) { f[vxlanAt] = 0 }, refused: true},
		"another MAC address":       {change: func(f []byte) { f[innerAt+5] ^= 1 }, refused: true},
		"another inner address":     {change: func(f []byte) { f[innerAt+scontest.IPAt+19] ^= 1 }, refused: true},
		"the outer checksum wrong":  {change: func(f []byte) { mendOuter(f); f[scontest.UDPAt+6] ^= 1 }, broken: true, refused: true},
		"the outer header wrong":    {change: func(f []byte) { f[scontest.IPAt+10] ^= 1 }, broken: true, refused: true},
		"the inner header wrong":    {change: func(f []byte) { mendOuter(f); f[innerAt+scontest.IPAt+10] ^= 1; mendUDP(f) }, broken: true, refused: true},
		"no outer checksum":         {change: func(f []byte) { mendOuter(f); f[scontest.UDPAt+6], f[scontest.UDPAt+7] = 0, 0 }, broken: true},
		"another outer TTL":         {change: func(f []byte) { f[scontest.IPAt+8] = 3 }},
		"another outer source port": {change: func(f []byte) { f[scontest.UDPAt] ^= 1 }},
		"another machine":           {change: func(f []byte) { f[scontest.IPAt+15] = 9 }},
		"another outer DSCP":        {change: func(f []byte) { f[scontest.IPAt+1] = 0x28 }},
		"no time to live":           {change: func(f []byte) { f[innerAt+scontest.IPAt+8] = 1 }, refused: true},
		"congestion, unable":        {change: ecn(ce, 0), refused: true},
		"congestion":                {change: ecn(ce, ect0), ecn: ce},
		"congestion inside":         {change: ecn(ect0, ce), ecn: ce},
		"able":                      {change: ecn(ect0, ect0), ecn: ect0},
		"able, the other direction": {change: ecn(ect1, ect0), ecn: ect1},
		"able inside alone":         {change: ecn(0, ect0), ecn: ect0},
	} {
		t.Run(name, func(t *testing.T) {
			f := slices.Clone(intact)
			k.change(f)
			if !k.broken {
				mendOuter(f)
			}
			for range 3 {
				inside.Skip()
				sending.Send(f)
				sending.Send(intact)
				var arrived []scontest.Packet
				want := map[bool]int{false: 2, true: 1}[k.refused]
				scontest.Eventually(t, "the intact packet after it arrives", func() error {
					arrived = append(arrived, inside.Arrived(isUDP)...)
					if len(arrived) < want {
						return fmt.Errorf("%d packets arrived, want %d", len(arrived), want)
					}
					return nil
				})
				if len(arrived) != want {
					t.Errorf("%d packets arrive, want %d", len(arrived), want)
				}
				if ecn := arrived[0].Data[scontest.IPAt+1] & 3; !k.refused && ecn != k.ecn {
					t.Errorf("the packet has the ECN bits %d, want %d", ecn, k.ecn)
				}
			}
		})
	}
}

// mendUDP recomputes the outer UDP checksum.
func mendUDP(f []byte) {
	f[scontest.UDPAt+6], f[scontest.UDPAt+7] = 0, 0
	binary.BigEndian.PutUint16(f[scontest.UDPAt+6:], udpSum(f))
}

// Bursts keep their order while leases end and packets alternate between the regular
// and the express path.
func TestFlannelOrder(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{
		Overlay: lab.OverlayFlannel, Offload: true,
		Config: func(c *config.Config) { c.LeasePackets = 50 },
	})
	for name, c := range flannelConnections(b, "udp") {
		t.Run(name, func(t *testing.T) {
			c := c.In(b.In(t))
			requests := scontest.SendNumbers(t, c.Client, c.Server, 16, time.Millisecond)
			replies := scontest.SendNumbers(t, c.Server, c.Client, 16, time.Millisecond)
			requests.Proceed(t, 8000)
			replies.Proceed(t, 8000)
			requests.WantAll(t, "requests")
			replies.WantAll(t, "replies")
		})
	}
	b.WantNoInvalid()
}

// With a VXLAN device as a port of the containers' bridge, as in Docker's overlay
// networks, all packets stay regular and arrive.
func TestDockerOverlay(t *testing.T) {
	t.Parallel()
	for _, offload := range []bool{false, true} {
		t.Run(fmt.Sprintf("offload %v", offload), func(t *testing.T) {
			b := scontest.New(t, scontest.Layout{Offload: offload, Overlay: lab.OverlayDocker})
			setBridgeFilter(b, "0")
			b.Up()
			for _, proto := range []string{"tcp", "udp"} {
				for name, c := range map[string]*scontest.Connection{
					"outgoing": b.Connect(proto, lab.Container(1), lab.Edge, netip.AddrPortFrom(lab.OverlayEdge, 0)),
					"incoming": b.Connect(proto, lab.Edge, lab.Container(1), netip.AddrPortFrom(lab.OverlayAddr(1), 0)),
				} {
					c.MustPing(50)
					c.Exchange(2 << 20)
					if f, err := c.Flow(); err == nil && f.ExpressPackets != [2]uint64{} {
						t.Errorf("%s %s went express: %+v", name, proto, f)
					}
				}
			}
			b.Outgoing("tcp", 1).GoExpress()
			b.WantNoInvalid()
		})
	}
}
