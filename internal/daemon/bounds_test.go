package daemon_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/lab"
)

// A connection gets a Conentry with the packet that it is told to, no sooner.
func TestAdmit(t *testing.T) {
	t.Parallel()
	const admit = 30
	b := newExpress(t, layout{config: func(c *config.Config) { c.Admit = admit }})
	for name, connect := range directions {
		t.Run(name, func(t *testing.T) {
			c := connect(b.in(t), "udp", 1)
			for range admit/2 - 2 { // hello, and two packets each
				c.mustPing(1)
			}
			time.Sleep(50 * time.Millisecond)
			if f, err := c.flow(); err == nil {
				t.Errorf("too early: %+v", f)
			}
			c.goExpress()
		})
	}
}

// A container that uses its share up keeps none from the others.
func TestShare(t *testing.T) {
	t.Parallel()
	const connections, share = 64, 10 // percent
	b := newExpress(t, layout{containers: 2, config: func(c *config.Config) {
		c.Connections, c.PerContainerShare = connections, share
	}})
	for range 2 * connections * share / 100 {
		b.outgoing("udp", 1).mustPing(10)
	}
	eventually(t, "the share is used up", func() error {
		if c, _ := b.container(1); c.Entries != connections*share/100 {
			return fmt.Errorf("%d Conentries", c.Entries)
		}
		return nil
	})
	b.outgoing("udp", 2).goExpress()
	x, err := b.daemon.Explain(lab.Port(1))
	if err != nil || !strings.Contains(fmt.Sprint(x.Findings), "used up its share") {
		t.Errorf("explained as %+v, %v", x, err)
	}
}

// Conentries without packets go; a connection that comes back is kept for twice
// as long as it was silent.
func TestIdle(t *testing.T) {
	t.Parallel()
	const idle, rhythm = time.Second, 3 * time.Second
	b := newExpress(t, layout{config: func(c *config.Config) { c.FlushIdle = idle }})
	c := b.outgoing("udp", 1).goExpress()
	start := time.Now()
	c.waitGone()
	if took := time.Since(start); took < idle {
		t.Errorf("gone after %v", took)
	}
	time.Sleep(time.Until(start.Add(rhythm)))
	c.goExpress()
	eventually(t, "it is silent for nearly as long as before", func() error {
		if f := c.mustFlow(); f.IdleMS < (rhythm - idle/2).Milliseconds() {
			return fmt.Errorf("idle for %d ms", f.IdleMS)
		}
		return nil
	})
	// It would have been composed anew otherwise.
	before := c.mustFlow()
	c.mustPing(1)
	if f := c.mustFlow(); f.AgeMS < before.AgeMS || f.ExpressPackets[0] < before.ExpressPackets[0] {
		t.Errorf("%+v, before %+v", f, before)
	}
}

// A container that opens connections without end harms no other one, nor the
// machine's memory.
func TestFlood(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{containers: 2, offload: true, config: func(c *config.Config) {
		*c = config.Default()
		c.Admit = 2
	}})
	c := b.outgoing("udp", 2).goExpress()
	n := sendNumbers(t, c.client, c.server, 1, time.Millisecond)
	before := c.mustFlow()
	b.sh(lab.Edge, "iptables-nft -I INPUT -p udp --dport 20000:29999 -j DROP") // no answers
	const tuples, ports = 100_000, 10_000
	w := b.openWire(lab.Container(1))
	mac := b.bridgeMAC()
	for i := range tuples {
		f := frame(mac, w.iface.HardwareAddr,
			netip.AddrPortFrom(lab.ContainerAddr(1), uint16(10000+i/ports)),
			netip.AddrPortFrom(lab.EdgeAddr, uint16(20000+i%ports)), "x")
		for range 3 {
			w.send(f)
		}
	}
	flood, _ := b.container(1)
	if most := b.config.Connections * b.config.PerContainerShare / 100; flood.Entries < 100 || flood.Entries > most {
		t.Errorf("the flooding container has %d Conentries, %d at most", flood.Entries, most)
	}
	if f := c.mustFlow(); f.AgeMS < before.AgeMS || f.ExpressPackets[0] <= before.ExpressPackets[0] {
		t.Errorf("the other's is %+v, was %+v", f, before)
	}
	n.proceed(t, 100)
	c.waitExpressOneWay()
	b.outgoing("tcp", 2).goExpress()
	n.wantAll(t, "the other container's packets")
	rss := b.daemon.resident()
	t.Logf("%d Conentries, %d kB resident", b.status().Totals.Entries, rss>>10)
	// 30 MB is the promise; this program is larger than scon by one or two.
	if limit := int64(32 << 20); rss > limit && !raced {
		t.Errorf("the daemon takes more than %d MB", limit>>20)
	}
}

// waitExpressOneWay waits until packets of the original direction go express.
func (c *connection) waitExpressOneWay() {
	c.b.t.Helper()
	before := c.mustFlow().ExpressPackets[0]
	eventually(c.b.t, "express", func() error {
		if now := c.mustFlow().ExpressPackets[0]; now <= before {
			return fmt.Errorf("%d packets", now)
		}
		return nil
	})
}

// resident is how much memory the process takes, in bytes.
func (p *process) resident() int64 {
	p.t.Helper()
	statm, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), "statm"))
	if err != nil {
		p.t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(statm))[1], 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}
