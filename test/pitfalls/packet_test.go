package pitfalls

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// A stream survives a decrease and an increase of the path MTU, with segments that fit,
// also if the container offloads segmentation to the device.
func TestStreamFitsPathMTU(t *testing.T) {
	t.Parallel()
	for _, offload := range []bool{false, true} {
		t.Run(fmt.Sprintf("offload %v", offload), func(t *testing.T) {
			b := scontest.NewExpress(t, scontest.Layout{Offload: offload})
			c := b.Outgoing("tcp", 1).GoExpress()
			send := func() {
				t.Helper()
				if _, err := scontest.TransferStream(c.Client, c.Server, 4<<20, 1); err != nil {
					t.Fatal(err)
				}
			}
			send()
			for _, mtu := range []int{1300, 1000} {
				b.Sh(lab.Device, "ip link set eth0 mtu "+strconv.Itoa(mtu))
				send()
				c.GoExpress()
				// IP header, and TCP header with timestamps.
				if mss := scontest.Option(t, c.Client, unix.IPPROTO_TCP, unix.TCP_MAXSEG); mss > mtu-40 {
					t.Errorf("segments of %d bytes on a path with an MTU of %d", mss, mtu)
				}
			}
			b.Sh(lab.Device, "ip link set eth0 mtu 1500")
			send()
			c.GoExpress()
			b.WantNoInvalid()
		})
	}
}

// A UDP GSO packet arrives as datagrams of the right size.
func TestSegmentedDatagramsKeepTheirSize(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Offload: true})
	for name, connect := range scontest.Directions {
		t.Run(name, func(t *testing.T) {
			c := connect(b.In(t), "udp", 1)
			requests := scontest.SendNumbers(t, c.Client, c.Server, 16, time.Millisecond)
			replies := scontest.SendNumbers(t, c.Server, c.Client, 16, time.Millisecond)
			c.WaitExpress(nil)
			requests.Proceed(t, 2000)
			replies.Proceed(t, 2000)
			c.WaitExpress(nil)
			requests.WantAll(t, "requests")
			replies.WantAll(t, "replies")
		})
	}
	b.WantNoInvalid()
}

// udpDirection is one direction of a UDP connection: a frame as one end sends it, and the
// other end.
type udpDirection struct {
	from, to *scontest.Wire
	frame    []byte // without payload, to the gateway's MAC address
	receiver net.Conn
	node     string // the receiver's
}

// udpDirections returns both directions of a connection that container 1 opened to
// edge. The receivers are plain sockets.
func udpDirections(c *scontest.Connection) map[string]udpDirection {
	b := c.B
	b.T.Helper()
	f := c.MustFlow()
	inside, outside := b.OpenWire(lab.Container(1)), b.OpenWire(lab.Edge)
	return map[string]udpDirection{
		"out of the container": {
			inside, outside,
			scontest.Frame(b.BridgeMAC(), inside.Iface.HardwareAddr, endpoint(f.Orig.Src, f.Orig.Sport), endpoint(f.Orig.Dst, f.Orig.Dport), ""),
			c.Server, lab.Edge,
		},
		"into the container": {
			outside, inside,
			scontest.Frame(hardwareAddr(b, lab.Device, lab.Uplink), outside.Iface.HardwareAddr, endpoint(f.Reply.Src, f.Reply.Sport), endpoint(f.Reply.Dst, f.Reply.Dport), ""),
			c.Client, lab.Container(1),
		},
	}
}

// endpoint is one end of a flow's tuple.
func endpoint(ip string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(ip), port)
}

// with returns the frame with a payload, and a UDP checksum unless sum is 0.
func (w udpDirection) with(payload []byte, sum func(f []byte) uint16) []byte {
	f := append(bytes.Clone(w.frame), payload...)
	ip := f[scontest.IPAt:scontest.UDPAt]
	binary.BigEndian.PutUint16(ip[2:], uint16(len(f)-scontest.IPAt))
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^onesSum(0, ip))
	binary.BigEndian.PutUint16(f[scontest.UDPAt+4:], uint16(len(f)-scontest.UDPAt))
	if sum != nil {
		binary.BigEndian.PutUint16(f[scontest.UDPAt+6:], sum(f))
	}
	return f
}

// udpSum returns the correct checksum of a UDP packet.
func udpSum(f []byte) uint16 {
	udp := f[scontest.UDPAt:]
	pseudo := binary.BigEndian.AppendUint16([]byte{0, unix.IPPROTO_UDP}, uint16(len(udp)))
	return ^onesSum(uint32(onesSum(uint32(onesSum(0, pseudo)), f[scontest.IPAt+12:scontest.UDPAt])), udp)
}

// onesSum adds bytes to a one's complement sum.
func onesSum(sum uint32, b []byte) uint16 {
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	sum = sum>>16 + sum&0xffff
	return uint16(sum>>16 + sum)
}

// eventuallyExpress sends packets until all but two of a batch are express. Two may
// renew leases; rule changes by other processes on this machine make more of them
// regular for a while.
func eventuallyExpress(c *scontest.Connection, count uint64, send func()) {
	c.B.T.Helper()
	scontest.Eventually(c.B.T, fmt.Sprintf("%d packets go express", count), func() error {
		before, _ := c.Flow() // the Conentry may be gone
		send()
		after, err := c.Flow()
		went := after.ExpressPackets[0] + after.ExpressPackets[1] - before.ExpressPackets[0] - before.ExpressPackets[1]
		if went+2 < count || went > count {
			return errors.Join(fmt.Errorf("%d did", went), err)
		}
		return nil
	})
}

// A packet with a wrong checksum arrives with a wrong checksum: the receiver
// detects and counts it.
func TestDamagedPacketStaysDamaged(t *testing.T) {
	t.Parallel()
	const count = 20
	b := scontest.NewExpress(t, scontest.Layout{})
	c := b.Outgoing("udp", 1).GoExpress()
	for name, dir := range udpDirections(c) {
		t.Run(name, func(t *testing.T) {
			b := b.In(t)
			var wrong int
			eventuallyExpress(c.In(b), count+1, func() {
				before := checksumErrors(b, dir.node)
				for range count {
					dir.from.Send(dir.with([]byte("damage"), func(f []byte) uint16 { return udpSum(f) ^ 0x0100 }))
				}
				dir.from.Send(dir.with([]byte("intact"), udpSum))
				// Only the intact one arrives.
				if got, err := scontest.ReadDatagram(dir.receiver); err != nil || got != "intact" {
					t.Fatalf("read %q, %v", got, err)
				}
				wrong = checksumErrors(b, dir.node) - before
			})
			// Conntrack drops the regular ones as INVALID.
			if wrong < count-2 {
				t.Errorf("the receiver has counted %d wrong checksums, want %d", wrong, count)
			}
		})
	}
}

// checksumErrors returns a node's count of UDP packets with a wrong checksum.
func checksumErrors(b *scontest.Bed, node string) (n int) {
	b.T.Helper()
	err := b.Do(node, func() error {
		snmp, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		var names []string
		for line := range strings.Lines(string(snmp)) {
			fields, ok := strings.CutPrefix(line, "Udp: ")
			switch {
			case !ok:
			case names == nil:
				names = strings.Fields(fields)
			default:
				for i, value := range strings.Fields(fields) {
					if names[i] == "InCsumErrors" {
						n, err = strconv.Atoi(value)
					}
				}
			}
		}
		return err
	})
	if err != nil {
		b.T.Fatal(err)
	}
	return n
}

// The IP layer removes Ethernet padding: it is neither forwarded nor data.
func TestPaddingIsNotForwarded(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	c := b.Outgoing("udp", 1).GoExpress()
	for name, dir := range udpDirections(c) {
		t.Run(name, func(t *testing.T) {
			eventuallyExpress(c.In(b.In(t)), 10, func() {
				dir.to.Arrived(isUDP) // discard earlier frames
				for size := range 5 {
					for _, sum := range []func([]byte) uint16{nil, udpSum} {
						payload := []byte("abcd")[:size]
						f := dir.with(payload, sum)
						length := len(f)
						dir.from.Send(append(f, bytes.Repeat([]byte{0xa5}, 60-length)...))
						if got, err := scontest.ReadDatagram(dir.receiver); err != nil || got != string(payload) {
							t.Fatalf("%d bytes: read %q, %v", size, got, err)
						}
						packets := dir.to.Arrived(isUDP)
						if len(packets) != 1 || len(packets[0].Data) != length {
							t.Errorf("%d bytes: want one frame of %d bytes, got %v", size, length, packets)
						}
					}
				}
			})
		})
	}
	b.WantNoInvalid()
}

func isUDP(f []byte) bool {
	return len(f) >= scontest.UDPAt+8 && f[12] == 0x08 && f[13] == 0 && f[scontest.IPAt+9] == unix.IPPROTO_UDP
}

// A packet that is delivered into the container's namespace is PACKET_HOST
// there, and one for another MAC address is not delivered.
func TestDeliveredPacketIsPacketHost(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	c := b.Outgoing("udp", 1).GoExpress()
	const count = 50
	inside := b.OpenWire(lab.Container(1))
	eventuallyExpress(c, 2*count, func() {
		inside.Arrived(isUDP) // discard earlier frames
		c.MustPing(count)
		packets := inside.Arrived(isUDP)
		for _, p := range packets {
			if p.Type != unix.PACKET_HOST || !bytes.Equal(p.Data[:6], inside.Iface.HardwareAddr) {
				t.Errorf("a packet of type %d to %v", p.Type, net.HardwareAddr(p.Data[:6]))
			}
		}
		if len(packets) != count {
			t.Errorf("%d of %d packets arrived", len(packets), count)
		}
	})

	b.Sh(lab.Device, "ip link set eth0 promisc on")
	c.GoExpress()
	dir := udpDirections(c)["into the container"]
	stray := dir.with([]byte("stray"), udpSum)
	stray[5] ^= 1
	for range 20 {
		dir.from.Send(stray)
	}
	dir.from.Send(dir.with([]byte("mine"), udpSum))
	if got, err := scontest.ReadDatagram(c.Client); err != nil || got != "mine" {
		t.Errorf("read %q, %v", got, err)
	}
}
