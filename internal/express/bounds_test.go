package express_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// A connection gets a Conentry with the packet number that is configured, not
// before.
func TestAdmit(t *testing.T) {
	t.Parallel()
	const admit = 30
	b := scontest.NewExpress(t, scontest.Layout{Config: func(c *config.Config) { c.Admit = admit }})
	for name, connect := range scontest.Directions {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			c := connect(b.In(t), "udp", 1)
			for range admit/2 - 2 { // hello, and two packets each
				c.MustPing(1)
			}
			quick := time.Since(begin) < 500*time.Millisecond // otherwise it is slow
			time.Sleep(50 * time.Millisecond)
			if f, err := c.Flow(); err == nil && quick {
				t.Errorf("too early: %+v", f)
			}
			c.GoExpress()
		})
	}
}

// A slow connection gets a Conentry long before it has had the packets that others
// need.
func TestAdmitSlow(t *testing.T) {
	t.Parallel()
	const admit = 1000
	b := scontest.NewExpress(t, scontest.Layout{Config: func(c *config.Config) { c.Admit = admit }})
	for name, connect := range scontest.Directions {
		for _, proto := range []string{"tcp", "udp"} {
			t.Run(name+" "+proto, func(t *testing.T) {
				t.Parallel()
				c := connect(b.In(t), proto, 1)
				pings := 0
				scontest.Eventually(t, "it has a Conentry", func() error {
					pings++
					c.MustPing(1)
					time.Sleep(time.Second)
					_, err := c.Flow()
					return err
				})
				if pings > admit/10 {
					t.Errorf("after %d messages", pings)
				}
			})
		}
	}
}

// A container that has used up its share does not affect the others.
func TestShare(t *testing.T) {
	t.Parallel()
	const connections, share = 64, 10 // percent
	b := scontest.NewExpress(t, scontest.Layout{Containers: 2, Config: func(c *config.Config) {
		c.Connections, c.PerContainerShare = connections, share
	}})
	for range 2 * connections * share / 100 {
		b.Outgoing("udp", 1).MustPing(10)
	}
	scontest.Eventually(t, "the share is used up", func() error {
		if c, _ := b.Container(1); c.Entries != connections*share/100 {
			return fmt.Errorf("%d Conentries", c.Entries)
		}
		return nil
	})
	b.Outgoing("udp", 2).GoExpress()
	x, err := b.Daemon.Explain(lab.Port(1))
	if err != nil || !strings.Contains(fmt.Sprint(x.Findings), "used up its share") {
		t.Errorf("explained as %+v, %v", x, err)
	}
}

// Idle Conentries are removed. A connection that returns is kept for twice as
// long as it was silent.
func TestIdle(t *testing.T) {
	t.Parallel()
	const idle, rhythm = time.Second, 3 * time.Second
	b := scontest.NewExpress(t, scontest.Layout{Config: func(c *config.Config) { c.FlushIdle = idle }})
	c := b.Outgoing("udp", 1).GoExpress()
	start := time.Now()
	c.WaitGone()
	if took := time.Since(start); took < idle {
		t.Errorf("gone after %v", took)
	}
	time.Sleep(time.Until(start.Add(rhythm)))
	c.GoExpress()
	scontest.Eventually(t, "it is silent for nearly as long as before", func() error {
		if f := c.MustFlow(); f.IdleMS < (rhythm - idle/2).Milliseconds() {
			return fmt.Errorf("idle for %d ms", f.IdleMS)
		}
		return nil
	})
	// It would have been composed again otherwise.
	before := c.MustFlow()
	c.MustPing(1)
	if f := c.MustFlow(); f.AgeMS < before.AgeMS || f.ExpressPackets[0] < before.ExpressPackets[0] {
		t.Errorf("%+v, before %+v", f, before)
	}
}

// A container that opens connections without end affects neither other
// containers nor the memory of the machine.
func TestFlood(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{
		Containers: 2, Offload: true, SCON: buildSCON(t),
		Config: func(c *config.Config) {
			*c = config.Default()
			c.Admit = 2
		},
	})
	c := b.Outgoing("udp", 2).GoExpress()
	n := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
	before := c.MustFlow()
	b.Sh(lab.Edge, "iptables-nft -I INPUT -p udp --dport 20000:29999 -j DROP") // no answers
	const tuples, ports = 100_000, 10_000
	w := b.OpenWire(lab.Container(1))
	mac := b.BridgeMAC()
	for i := range tuples {
		f := scontest.Frame(mac, w.Iface.HardwareAddr,
			netip.AddrPortFrom(lab.ContainerAddr(1), uint16(10000+i/ports)),
			netip.AddrPortFrom(lab.EdgeAddr, uint16(20000+i%ports)), "x")
		for range 3 {
			w.Send(f)
		}
	}
	flood, _ := b.Container(1)
	if most := b.Config.Connections * b.Config.PerContainerShare / 100; flood.Entries < 100 || flood.Entries > most {
		t.Errorf("the flooding container has %d Conentries, %d at most", flood.Entries, most)
	}
	if f := c.MustFlow(); f.AgeMS < before.AgeMS || f.ExpressPackets[0] <= before.ExpressPackets[0] {
		t.Errorf("the other's is %+v, was %+v", f, before)
	}
	n.Proceed(t, 100)
	c.WaitExpressOriginal()
	b.Outgoing("tcp", 2).GoExpress()
	n.WantAll(t, "the other container's packets")
	private := b.Daemon.Private()
	t.Logf("%d Conentries, %d kB resident, %d kB of them private", b.Status().Totals.Entries, b.Daemon.Resident()>>10, private>>10)
	// 10 MB of an idle daemon, 0.2 KB for each Conentry beside the heap, and what the heap has
	// grown by while so many connections were looked at: 14 to 17 MB.
	if limit := int64(24 << 20); private > limit {
		t.Errorf("the daemon takes more than %d MB", limit>>20)
	}
}

// buildSCON builds the command as "make build" does.
func buildSCON(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "scon")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", file, "../../cmd/scon")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", cmd, err, out)
	}
	return file
}
