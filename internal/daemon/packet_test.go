package daemon_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/lab"
)

// socket gives fn the socket of a UDP connection.
func socket(t *testing.T, c net.Conn, fn func(fd int) error) {
	t.Helper()
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	control := raw.Control(func(fd uintptr) { err = fn(int(fd)) })
	if err := errors.Join(control, err); err != nil {
		t.Fatal(err)
	}
}

// set sets an option of a UDP socket.
func set(t *testing.T, c net.Conn, level, name, value int) {
	t.Helper()
	socket(t, c, func(fd int) error { return unix.SetsockoptInt(fd, level, name, value) })
}

// get reads an option of a UDP socket.
func get(t *testing.T, c net.Conn, level, name int) (value int) {
	t.Helper()
	socket(t, c, func(fd int) (err error) {
		value, err = unix.GetsockoptInt(fd, level, name)
		return err
	})
	return value
}

// wantReason fails unless container 1's port has counted a reason.
func (b *bed) wantReason(reason string, before uint64) {
	b.t.Helper()
	if c, _ := b.container(1); c.Reasons[reason] <= before {
		b.t.Errorf("no packet counted as %s (before: %d): %v", reason, before, c.Reasons)
	}
}

// A packet of an express connection that is longer than the way out is answered
// as without SCON: fragmentation needed.
func TestTooLong(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{})
	c := b.outgoing("udp", 1).goExpress()
	if err := pass(c.client, c.server, 1400); err != nil {
		t.Fatal(err)
	}
	b.sh(lab.Device, "ip link set eth0 mtu 1300")
	c.goExpress()
	set(t, c.client, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	eventually(t, "the path's MTU is known", func() error {
		_, err := c.client.Write(make([]byte, 1400))
		if mtu := get(t, c.client, unix.IPPROTO_IP, unix.IP_MTU); mtu != 1300 {
			return fmt.Errorf("it is %d, and sending ended with %v", mtu, err)
		}
		return nil
	})
	get(t, c.client, unix.SOL_SOCKET, unix.SO_ERROR) // that was it
	if err := pass(c.client, c.server, 1200); err != nil {
		t.Fatal(err)
	}
	c.goExpress()
}

// A packet whose hops end is answered by device, and the connection goes on.
func TestHopsEnd(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{})
	c := b.outgoing("udp", 1).goExpress()
	set(t, c.client, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
	set(t, c.client, unix.IPPROTO_IP, unix.IP_TTL, 1)
	if _, err := c.client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := readPlain(c.client); !errors.Is(err, unix.EHOSTUNREACH) {
		t.Errorf("reading ended with %v", err)
	}
	b.wantReason("ttl_expires", 0)
	set(t, c.client, unix.IPPROTO_IP, unix.IP_TTL, 2)
	before := c.mustFlow().ExpressPackets[0]
	for range 20 {
		if err := pass(c.client, c.server, 10); err != nil {
			t.Fatal(err)
		}
	}
	if c.mustFlow().ExpressPackets[0] < before+15 {
		t.Error("packets with two hops left are not express")
	}
}

// Fragments of an express connection arrive, and go regular.
func TestFragments(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{})
	for name, connect := range directions {
		t.Run(name, func(t *testing.T) {
			b := b.in(t)
			c := connect(b, "udp", 1).goExpress()
			container, _ := b.container(1)
			for _, e := range c.ends() {
				for range 10 {
					if err := pass(e[0], e[1], 4000); err != nil {
						t.Fatal(err)
					}
				}
			}
			b.wantReason("fragment", container.Reasons["fragment"]+19)
			c.goExpress()
		})
	}
	b.wantNoInvalid()
}

// A UDP packet without a checksum has none at its end.
func TestNoChecksum(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{})
	c := b.outgoing("udp", 1)
	set(t, c.client, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1)
	c.goExpress()
	before := c.mustFlow().ExpressPackets[0]
	edge := b.openWire(lab.Edge)
	for range 20 {
		if err := pass(c.client, c.server, 10); err != nil {
			t.Fatal(err)
		}
		f := edge.receive(func(f []byte) bool {
			return len(f) >= udpAt+8 && f[ipAt+9] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(f[udpAt:]) == c.port()
		})
		if sum := binary.BigEndian.Uint16(f[udpAt+6:]); sum != 0 {
			t.Fatalf("checksum %#x", sum)
		}
	}
	if c.mustFlow().ExpressPackets[0] < before+15 {
		t.Error("packets without a checksum are not express")
	}
}
