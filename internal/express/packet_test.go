package express_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/scontest"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/lab"
)

// A packet of an express connection that exceeds the outgoing MTU is answered
// as without SCON: fragmentation needed.
func TestTooLong(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	c := b.Outgoing("udp", 1).GoExpress()
	if err := scontest.Pass(c.Client, c.Server, 1400); err != nil {
		t.Fatal(err)
	}
	b.Sh(lab.Device, "ip link set eth0 mtu 1300")
	c.GoExpress()
	scontest.SetOption(t, c.Client, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	scontest.Eventually(t, "the path's MTU is known", func() error {
		_, err := c.Client.Write(make([]byte, 1400))
		if mtu := scontest.Option(t, c.Client, unix.IPPROTO_IP, unix.IP_MTU); mtu != 1300 {
			return fmt.Errorf("it is %d, and sending ended with %v", mtu, err)
		}
		return nil
	})
	scontest.Option(t, c.Client, unix.SOL_SOCKET, unix.SO_ERROR) // that was it
	if err := scontest.Pass(c.Client, c.Server, 1200); err != nil {
		t.Fatal(err)
	}
	c.GoExpress()
}

// A packet whose TTL expires is answered by device, and the connection
// continues.
func TestHopsEnd(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	c := b.Outgoing("udp", 1).GoExpress()
	scontest.SetOption(t, c.Client, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
	scontest.SetOption(t, c.Client, unix.IPPROTO_IP, unix.IP_TTL, 1)
	if _, err := c.Client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := scontest.ReadDatagram(c.Client); !errors.Is(err, unix.EHOSTUNREACH) {
		t.Errorf("reading ended with %v", err)
	}
	b.WantReason("ttl_expires", 0)
	scontest.SetOption(t, c.Client, unix.IPPROTO_IP, unix.IP_TTL, 2)
	before := c.MustFlow().ExpressPackets[0]
	for range 20 {
		if err := scontest.Pass(c.Client, c.Server, 10); err != nil {
			t.Fatal(err)
		}
	}
	if c.MustFlow().ExpressPackets[0] < before+15 {
		t.Error("packets with a TTL of two are not express")
	}
}

// Fragments of an express connection arrive, and go regular.
func TestFragments(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	for name, connect := range scontest.Directions {
		t.Run(name, func(t *testing.T) {
			b := b.In(t)
			c := connect(b, "udp", 1).GoExpress()
			container, _ := b.Container(1)
			for _, e := range c.Ends() {
				for range 10 {
					if err := scontest.Pass(e[0], e[1], 4000); err != nil {
						t.Fatal(err)
					}
				}
			}
			b.WantReason("fragment", container.Reasons["fragment"]+19)
			c.GoExpress()
		})
	}
	b.WantNoInvalid()
}

// A UDP packet without a checksum arrives without one.
func TestNoChecksum(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	c := b.Outgoing("udp", 1)
	scontest.SetOption(t, c.Client, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1)
	c.GoExpress()
	before := c.MustFlow().ExpressPackets[0]
	edge := b.OpenWire(lab.Edge)
	for range 20 {
		if err := scontest.Pass(c.Client, c.Server, 10); err != nil {
			t.Fatal(err)
		}
		f := edge.Receive(func(f []byte) bool {
			return len(f) >= scontest.UDPAt+8 && f[scontest.IPAt+9] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(f[scontest.UDPAt:]) == c.Port()
		})
		if sum := binary.BigEndian.Uint16(f[scontest.UDPAt+6:]); sum != 0 {
			t.Fatalf("checksum %#x", sum)
		}
	}
	if c.MustFlow().ExpressPackets[0] < before+15 {
		t.Error("packets without a checksum are not express")
	}
}

// Packets that no device has checked and that are longer than the programs add up go
// regular.
func TestLongChecksum(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{})
	for node, devices := range map[string][]string{
		lab.Container(1): {"eth0"}, lab.Device: {"eth0", lab.Port(1), lab.Bridge}, lab.Edge: {"eth0"},
	} {
		for _, device := range devices {
			b.Sh(node, "ip link set "+device+" mtu 20000")
		}
	}
	b.Sh(lab.Container(1), "ethtool -K eth0 tx off")
	b.Up()
	c := b.Outgoing("udp", 1).GoExpress()
	for _, tc := range []struct {
		length  int
		express bool
	}{{15000, true}, {18000, false}} {
		before := c.MustFlow().ExpressPackets[0]
		for range 20 {
			if err := scontest.Pass(c.Client, c.Server, tc.length); err != nil {
				t.Fatalf("%d bytes: %v", tc.length, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := c.MustFlow().ExpressPackets[0] - before; n > 0 != tc.express {
			t.Errorf("%d of 20 packets of %d bytes are express", n, tc.length)
		}
	}
}
