package pitfalls

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// Conntrack relates an ICMP error to its connection. The error reaches the container's
// socket, whichever host sends it and whichever end opened the connection.
func TestICMPErrorsReachTheContainer(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	router := b.OpenWire(lab.Edge)
	for name, connect := range scontest.Directions {
		c := connect(b, "udp", 1)
		inside := c.Client
		if c.From == lab.Edge {
			inside = c.Server
		}
		scontest.SetOption(t, inside, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
		scontest.SetOption(t, inside, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		for _, e := range []struct {
			name string
			kind icmpError
			want syscall.Errno
		}{
			{"port unreachable", icmpError{3, 3, 0}, syscall.ECONNREFUSED},
			{"host prohibited", icmpError{3, 10, 0}, syscall.EHOSTUNREACH},
			{"time exceeded", icmpError{11, 0, 0}, syscall.EHOSTUNREACH},
			{"fragmentation needed", icmpError{3, 4, 1200}, syscall.EMSGSIZE},
		} {
			t.Run(name+", "+e.name, func(t *testing.T) {
				b := b.In(t)
				c := c.In(b).GoExpress()
				f := c.MustFlow()
				// The container's address and port as seen outside.
				from, to := endpoint(f.Reply.Dst, f.Reply.Dport), endpoint(f.Reply.Src, f.Reply.Sport)
				if c.From == lab.Edge {
					from, to = endpoint(f.Orig.Dst, f.Orig.Dport), endpoint(f.Orig.Src, f.Orig.Sport)
				}
				quoted := scontest.Frame(nil, nil, from, to, "")[scontest.IPAt:]
				router.Send(e.kind.frame(hardwareAddr(b, lab.Device, lab.Uplink), router.Iface.HardwareAddr, lab.EdgeAddr, from.Addr(), quoted))
				if _, err := scontest.ReadDatagram(inside); !errors.Is(err, e.want) {
					t.Errorf("read: %v", err)
				}
				c.GoExpress()
			})
		}
	}
	b.WantNoInvalid()
}

// icmpError is an ICMP error about a packet.
type icmpError struct {
	kind, code byte
	mtu        uint16
}

// frame returns the ICMP error, which quotes the packet, as a frame.
func (e icmpError) frame(to, from net.HardwareAddr, src, dst netip.Addr, quoted []byte) []byte {
	f := scontest.Frame(to, from, netip.AddrPortFrom(src, 0), netip.AddrPortFrom(dst, 0), string(quoted))
	ip, icmp := f[scontest.IPAt:scontest.UDPAt], f[scontest.UDPAt:]
	ip[9] = unix.IPPROTO_ICMP
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^onesSum(0, ip))
	clear(icmp[:8])
	icmp[0], icmp[1] = e.kind, e.code
	binary.BigEndian.PutUint16(icmp[6:], e.mtu)
	binary.BigEndian.PutUint16(icmp[2:], ^onesSum(0, icmp))
	return f
}

// An ICMP error of the container's kernel about an express packet is
// translated like the packet.
func TestICMPErrorsOfTheContainerReachOutside(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	b.Sh(lab.Container(1), "sysctl -qw net.ipv4.icmp_ratelimit=0")
	for name, connect := range scontest.Directions {
		t.Run(name, func(t *testing.T) {
			c := connect(b.In(t), "udp", 1).GoExpress()
			closed, other := c.Client, c.Server
			if c.From == lab.Edge {
				closed, other = c.Server, c.Client
			}
			scontest.SetOption(t, other, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
			closed.Close()
			const count = 10
			eventuallyExpress(c, count, func() {
				for range count {
					if _, err := other.Write([]byte("anybody?")); err != nil {
						t.Fatal(err)
					}
					if _, err := scontest.ReadDatagram(other); !errors.Is(err, syscall.ECONNREFUSED) {
						t.Fatalf("read: %v", err)
					}
				}
			})
		})
	}
	b.WantNoInvalid()
}
