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

	"github.com/scon-project/scon/internal/lab"
	"github.com/scon-project/scon/internal/scontest"
)

// flannelWays connects container 1 with edge by the flannel overlay, from
// either side.
func flannelWays(b *scontest.Bed, proto string) map[string]*scontest.Connection {
	b.T.Helper()
	p := lab.Publications(1)[0]
	return map[string]*scontest.Connection{
		"outgoing " + proto: b.Connect(proto, lab.Container(1), lab.Edge, netip.AddrPortFrom(lab.FlannelEdge, 0)),
		"incoming " + proto: b.ConnectTo(proto, lab.Edge, lab.Container(1), netip.AddrPortFrom(lab.FlannelDeviceAddr, p.Device), p.Container, 0),
	}
}

// outer is what a VXLAN packet on the wire has around the inner one.
type outer struct {
	src, dst   netip.Addr
	tos, ttl   byte
	sport      uint16
	flags, vni uint32
	inner      []byte // frame
}

// readOuter reads a frame that carries another one to a port. It is an error if
// anything of the outer headers is wrong.
func readOuter(frame []byte, port uint16) (o outer, carries bool, err error) {
	const vxlanAt = scontest.UDPAt + 8
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
		err = fmt.Errorf("the IP header says %d bytes", binary.BigEndian.Uint16(ip[2:]))
	case int(binary.BigEndian.Uint16(udp[4:])) != len(udp):
		err = fmt.Errorf("the UDP header says %d bytes", binary.BigEndian.Uint16(udp[4:]))
	case binary.BigEndian.Uint16(udp[6:]) != 0 && udpSum(zeroSum(frame)) != binary.BigEndian.Uint16(udp[6:]):
		err = fmt.Errorf("the UDP header has the checksum %#x", binary.BigEndian.Uint16(udp[6:]))
	case o.inner[12] != 0x08 || o.inner[13] != 0 || onesSum(0, o.inner[scontest.IPAt:scontest.UDPAt]) != 0xffff:
		err = errors.New("the inner packet is none")
	case scontest.IPAt+int(binary.BigEndian.Uint16(o.inner[scontest.IPAt+2:])) != len(o.inner):
		err = fmt.Errorf("the inner packet has %d bytes, says %d", len(o.inner), binary.BigEndian.Uint16(o.inner[scontest.IPAt+2:]))
	}
	return o, true, err
}

// zeroSum is a UDP packet without its checksum.
func zeroSum(frame []byte) []byte {
	f := slices.Clone(frame)
	f[scontest.UDPAt+6], f[scontest.UDPAt+7] = 0, 0
	return f
}

// innerPort is the destination port of the inner packet.
func (o outer) innerPort() uint16 { return binary.BigEndian.Uint16(o.inner[scontest.UDPAt+2:]) }

// outers are the packets on their way to edge's port of a connection by flannel
// since the last call. Where checksums are left to devices there are none yet.
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

// By VXLAN as flannel has it, traffic goes express both ways, arrives, and is on
// the wire as the kernel would have put it there.
func TestFlannel(t *testing.T) {
	t.Parallel()
	for _, offload := range []bool{false, true} {
		t.Run(fmt.Sprintf("offload %v", offload), func(t *testing.T) {
			b := scontest.NewExpress(t, scontest.Layout{Offload: offload, Overlay: lab.OverlayFlannel})
			for _, proto := range []string{"tcp", "udp"} {
				for name, c := range flannelWays(b, proto) {
					c.GoExpress()
					c.Exchange(2 << 20)
					if f := c.MustFlow(); f.Oif != lab.Flannel {
						t.Errorf("%s goes out of %q", name, f.Oif)
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

// What an agent says of the overlay holds at once: where a machine is, and
// under which address.
func TestFlannelAgent(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Overlay: lab.OverlayFlannel})
	b.Sh(lab.Edge, "ip addr add 10.77.0.3/24 dev eth0")
	mac := hardwareAddr(b, lab.Edge, lab.Flannel).String()
	for _, proto := range []string{"tcp", "udp"} {
		c := flannelWays(b, proto)["outgoing "+proto]
		wire := b.OpenWire(lab.Edge)
		want := lab.EdgeAddr
		for i, to := range []string{"10.77.0.3", "10.77.0.2"} {
			c.GoExpress()
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

// stops checks that nothing of a connection arrives any more after a command,
// and again after another one.
func stops(c *scontest.Connection, command, back string) {
	t := c.B.T
	t.Helper()
	c.GoExpress()
	c.B.Sh(lab.Device, command)
	buf := make([]byte, 1500)
	silence := func() error {
		for _, e := range c.Ends() {
			for err := error(nil); err == nil; { // what came before
				_ = e[1].SetReadDeadline(time.Now().Add(20 * time.Millisecond))
				_, err = e[1].Read(buf)
			}
			if _, err := e[0].Write([]byte("x")); err != nil && !scontest.Refused(err) {
				return err
			}
			_ = e[1].SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			if _, err := e[1].Read(buf); errors.Is(err, os.ErrDeadlineExceeded) {
				return nil // one of them is enough
			}
		}
		return errors.New("packets arrive both ways")
	}
	scontest.Eventually(t, "the way is cut by "+command, silence)
	for range 5 {
		if err := silence(); err != nil {
			t.Errorf("%s: %v", command, err)
		}
	}
	c.B.Sh(lab.Device, back)
	scontest.Eventually(t, "the way is open after "+back, func() error {
		if _, err := c.Client.Write([]byte("x")); err != nil {
			return err
		}
		_ = c.Server.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		_, err := c.Server.Read(buf)
		return err
	})
	for _, e := range c.Ends() { // what was under way
		for err := error(nil); err == nil; {
			_ = e[1].SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			_, err = e[1].Read(buf)
		}
	}
}

// Rules of the machine about the overlay's own packets hold, out and in, and so
// do those about the inner ones.
func TestFlannelRules(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Overlay: lab.OverlayFlannel})
	b.Sh(lab.Device, `
		nft add table ip outer
		nft add chain ip outer out { type filter hook output priority 0 ; }
		nft add chain ip outer in { type filter hook input priority 0 ; }
		nft add chain ip outer pre { type filter hook prerouting priority -250 ; }
		nft add chain ip outer through { type filter hook forward priority 0 ; }`)
	c := flannelWays(b, "udp")["outgoing udp"]
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

// A limit on the overlay's own packets is for all of them.
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
	c := flannelWays(b, "udp")["outgoing udp"].GoExpress()
	const count = 100
	before := [2]uint64{counted(b, "sent"), counted(b, "got")}
	c.MustPing(count)
	for i, name := range []string{"sent", "got"} {
		if n := counted(b, name) - before[i]; n < count {
			t.Errorf("the rules have seen %d packets of %d %s", n, count, name)
		}
	}
}

// counted is the packets of a counter in device's table outer.
func counted(b *scontest.Bed, name string) (packets uint64) {
	b.T.Helper()
	out := b.Sh(lab.Device, "nft list counter ip outer "+name)
	_, count, _ := strings.Cut(out, "packets ")
	if _, err := fmt.Sscan(count, &packets); err != nil {
		b.T.Fatalf("reading a counter: %v:\n%s", err, out)
	}
	return packets
}

// By VXLAN as Docker's overlay networks have it, a port of the containers' own
// bridge, nothing goes express, and everything arrives.
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
