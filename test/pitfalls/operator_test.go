package pitfalls

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// However often daemons are killed, their successor has one program at each hook and
// leaves filters of other programs alone.
func TestRestartLeavesOneProgramEach(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{})
	b.Sh(lab.Device, `
		tc qdisc add dev eth0 clsact
		tc filter add dev eth0 egress protocol ip prio 7 u32 match u32 0 0 classid 1:1`)
	const filters = "tc filter show dev eth0 egress"
	before := b.Sh(lab.Device, filters)
	b.Up()
	if mode := b.Status().Mode; mode != "tcx" {
		t.Skipf("hooked by %s: before Linux 6.6 there is no tcx", mode)
	}
	c := b.Outgoing("tcp", 1).GoExpress()
	for range 3 {
		b.Daemon.Kill()
		b.Up()
		for _, dev := range []string{lab.Uplink, lab.Port(1)} {
			for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
				if n := b.Programs(dev, at); n != 1 {
					t.Errorf("%s has %d programs at %v", dev, n, at)
				}
			}
		}
		if after := b.Sh(lab.Device, filters); after != before {
			t.Errorf("filters of eth0:\n%s\nbefore:\n%s", after, before)
		}
		c.GoExpress()
	}
	b.WantNoInvalid()
}

// A capture at the bridge misses express packets. While the container is paused, the
// capture has them, and the connection continues.
func TestPauseShowsPacketsAtTheBridge(t *testing.T) {
	t.Parallel()
	const pings = 50
	b := scontest.NewExpress(t, scontest.Layout{Containers: 2})
	c, other := b.Outgoing("udp", 1).GoExpress(), b.Outgoing("udp", 2).GoExpress()
	bridge := b.OpenDevice(lab.Device, lab.Bridge)
	seen := func(c *scontest.Connection) int {
		bridge.Arrived(isUDP) // discard earlier frames
		c.MustPing(pings)
		return len(bridge.Arrived(func(f []byte) bool {
			return isUDP(f) && binary.BigEndian.Uint16(f[scontest.UDPAt:]) == c.Port()
		}))
	}
	unseen := func(c *scontest.Connection) {
		t.Helper()
		n := pings
		eventuallyExpress(c, 2*pings, func() { n = seen(c) })
		if n > 2 {
			t.Errorf("%d of %d packets are seen at the bridge", n, pings)
		}
	}
	unseen(c)
	if err := b.Daemon.Pause(lab.Port(1)); err != nil {
		t.Fatal(err)
	}
	if n := seen(c); n != pings {
		t.Errorf("while paused, %d of %d packets are seen at the bridge", n, pings)
	}
	x, err := b.Daemon.Explain(lab.Port(1))
	if err != nil {
		t.Fatal(err)
	}
	if words := fmt.Sprintf("%+v", x); x.Express || !strings.Contains(words, "paused") {
		t.Errorf("explained by %s", words)
	}
	unseen(other)
	if err := b.Daemon.Resume(lab.Port(1)); err != nil {
		t.Fatal(err)
	}
	unseen(c)
	b.WantNoInvalid()
}
