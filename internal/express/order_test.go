package express_test

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// steer makes a device of a node pass its packets to these CPUs; "1" is the
// first one, "0" none.
func steer(b *scontest.Bed, node, dev, cpus string) {
	b.T.Helper()
	out, err := exec.Command("ip", "netns", "exec", filepath.Base(b.Node(node)), // it mounts the namespace's sysfs
		"sh", "-c", "echo "+cpus+" > /sys/class/net/"+dev+"/queues/rx-0/rps_cpus").CombinedOutput()
	if err != nil {
		b.T.Fatalf("steering packets at %s of %s: %v: %s", dev, node, err, out)
	}
}

// Packets of a connection do not overtake each other, neither into a container
// nor out of it, while they switch paths all the time. They travel in bursts,
// so that many are between two softirqs at any moment.
func TestOrder(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		connect func(b *scontest.Bed, proto string, n int) *scontest.Connection
		steer   func(b *scontest.Bed)
	}{
		{"outgoing", (*scontest.Bed).Outgoing, nil},
		{"incoming", (*scontest.Bed).Incoming, nil},
		{"steered at the port", (*scontest.Bed).Outgoing, func(b *scontest.Bed) { steer(b, lab.Device, lab.Port(1), "1") }},
		{"steered in the container", (*scontest.Bed).Outgoing, func(b *scontest.Bed) { steer(b, lab.Container(1), "eth0", "1") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := scontest.New(t, scontest.Layout{Offload: true, Config: func(c *config.Config) { c.LeasePackets = 50 }})
			if tc.steer != nil {
				tc.steer(b)
			}
			b.Up()
			keepOrder(t, b, tc.connect(b, "udp", 1), scontest.SendNumbers)
		})
	}
}

// sending is how numbers are sent.
type sending func(t *testing.T, from, to net.Conn, burst int, pause time.Duration) *scontest.Numbers

// keepOrder switches the path of a connection during bursts of numbered
// packets.
func keepOrder(t *testing.T, b *scontest.Bed, c *scontest.Connection, send sending) {
	t.Helper()
	for _, node := range []string{lab.Edge, lab.Container(1)} {
		b.Sh(node, "ethtool -K eth0 tx-udp-segmentation off")
	}
	const burst, pause = 32, 500 * time.Microsecond
	requests := send(t, c.Client, c.Server, burst, pause)
	replies := scontest.SendNumbers(t, c.Server, c.Client, burst, pause)
	proceed := func() {
		t.Helper()
		requests.Proceed(t, 2000)
		replies.Proceed(t, 2000)
	}
	c.WaitExpress(nil) // admission
	before := c.MustFlow().ExpressPackets
	proceed()
	proceed() // leases end
	after := c.MustFlow().ExpressPackets
	for dir := range after {
		if after[dir]-before[dir] < 2000 {
			t.Errorf("direction %d: %d packets went express", dir, after[dir]-before[dir])
		}
	}
	changes := map[string]func(i int) error{
		"pause":  func(int) error { return b.Daemon.Pause("") },
		"resume": func(int) error { return b.Daemon.Resume("") },
		"flush":  func(int) error { _, err := b.Daemon.Flush(""); return err },
		"rules": func(i int) error {
			b.Sh(lab.Device, fmt.Sprintf("nft add table ip order%d", i))
			return nil
		},
	}
	for i := range 5 {
		for _, what := range []string{"rules", "pause", "resume", "flush"} {
			if err := changes[what](i); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			proceed()
		}
	}
	c.WaitExpress(nil)
	requests.WantAll(t, "requests")
	replies.WantAll(t, "replies")
	b.WantNoInvalid()
}

// Packets that a card hands over together keep their order, when the first of them are
// longer than the lease allows and the last one is not.
func TestOrderBehindLonger(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Offload: true})
	b.Sh(lab.Edge, "ethtool -K eth0 tx-udp-segmentation off tso off") // segments arrive at once, by NAPI
	b.Sh(lab.Device, "ethtool -K eth0 gro on")
	for range 5 {
		c := b.Incoming("udp", 1).GoExpress()
		before := c.MustFlow().ExpressPackets[0]
		scontest.SetOption(t, c.Client, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 1000)
		if _, err := c.Client.Write(make([]byte, 3010)); err != nil {
			t.Fatal(err)
		}
		var lengths []int
		buf := make([]byte, 2000)
		for range 4 {
			_ = c.Server.SetReadDeadline(time.Now().Add(scontest.Patience))
			n, err := c.Server.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			lengths = append(lengths, n)
		}
		if want := []int{1000, 1000, 1000, 10}; !slices.Equal(lengths, want) {
			t.Errorf("datagrams of %d bytes arrive, want %d", lengths, want)
		}
		if n := c.MustFlow().ExpressPackets[0] - before; n > 0 {
			t.Errorf("%d of the datagrams went express", n)
		}
		scontest.SetOption(t, c.Client, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 0)
		c.Exchange(64 << 10)
		if c.MustFlow().ExpressPackets[0] == before {
			t.Error("nothing goes express behind them")
		}
		c.Close()
	}
	b.WantNoInvalid()
}
