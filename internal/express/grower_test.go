package express_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// fewSlots has a table that grows after every second connection, by two. Connections stay,
// however long a busy machine takes to open the others.
func fewSlots(clsact bool) scontest.Layout {
	return scontest.Layout{Clsact: clsact, PageSlots: 4, Config: func(c *config.Config) {
		c.Connections, c.FlushIdle = 1<<17, time.Hour
	}}
}

// pages counts the pages of the table.
func pages(b *scontest.Bed) int { return len(b.Pins("page*")) }

// The table grows under traffic: not a packet of a known connection notices, and every new
// one finds a place. When the connections have gone, so have the pages.
func TestGrow(t *testing.T) {
	t.Parallel()
	for _, clsact := range []bool{false, true} {
		t.Run(map[bool]string{false: "tcx", true: "clsact"}[clsact], func(t *testing.T) {
			t.Parallel()
			b := scontest.NewExpress(t, fewSlots(clsact))
			f := b.StartTraffic()
			f.WaitExpress()
			before, small := b.Status(), pages(b)
			for i := range 40 {
				directions := []func(*scontest.Bed, string, int) *scontest.Connection{(*scontest.Bed).Outgoing, (*scontest.Bed).Incoming}
				directions[i%2](b, []string{"tcp", "udp"}[i/2%2], 1).GoExpress()
			}
			after := b.Status()
			if n := pages(b); n < 20 || after.Table.Room < 42 || after.Table.Bytes <= before.Table.Bytes {
				t.Errorf("%d pages, before %d: %+v, before %+v", n, small, after.Table, before.Table)
			}
			if after.Generation != before.Generation {
				t.Errorf("generation %d, before %d", after.Generation, before.Generation)
			}
			f.Proceed()
			f.WantUnbroken()
			b.WantNoInvalid()
			if _, err := b.Daemon.Flush(""); err != nil {
				t.Fatal(err)
			}
			scontest.Eventually(t, "the table is small", func() error {
				if n := pages(b); n > small {
					return fmt.Errorf("%d pages", n)
				}
				return nil
			})
		})
	}
}

// Rules change while the table grows: what they concern goes regular, wherever it lies.
func TestRulesWhileGrowing(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, fewSlots(false))
	stream := scontest.StartStream(b.Incoming("tcp", 1))
	stream.C.WaitExpress(nil)
	var all []*scontest.Connection
	for i := range 12 {
		all = append(all, b.Outgoing("udp", 1).GoExpress())
		b.Sh(lab.Device, fmt.Sprintf("nft add table ip growing\nnft add chain ip growing c%d { type filter hook forward priority 10 ; }", i))
	}
	b.Sh(lab.Device, "nft add counter ip growing dropped\nnft add rule ip growing c0 ip saddr 172.17.0.2 meta l4proto udp counter name dropped drop")
	// On one CPU the daemon may have to wait for it while the test sends.
	scontest.Eventually(t, "every connection meets the rule", func() error {
		b.Sh(lab.Device, "nft reset counter ip growing dropped")
		for _, c := range all {
			if _, err := c.Client.Write([]byte("dropped")); err != nil {
				return err
			}
		}
		out := b.Sh(lab.Device, "nft list counter ip growing dropped")
		if !strings.Contains(out, fmt.Sprintf("packets %d ", len(all))) {
			return errors.New(out)
		}
		return nil
	})
	b.Sh(lab.Device, "nft delete table ip growing")
	for _, c := range all {
		c.GoExpress()
	}
	stream.Stop(t)
	b.WantNoInvalid()
}

// The daemon is killed at any moment while the table grows and shrinks: the next one has
// every Conentry, nothing is lost, and the end leaves nothing.
func TestKillWhileGrowing(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, fewSlots(false))
	f := b.StartTraffic()
	f.WaitExpress()
	var all []*scontest.Connection
	for range 8 {
		before := len(all)
		for range 4 {
			all = append(all, b.Outgoing("udp", 1))
		}
		killed := make(chan struct{})
		go func() {
			defer close(killed)
			time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond)
			b.Daemon.Kill()
		}()
		for _, c := range all[before:] {
			for range 8 {
				c.MustPing(1)
			}
		}
		<-killed
		b.Up()
		if n := len(b.Flows()); n < before+2 {
			t.Errorf("%d Conentries, want %d", n, before+2)
		}
		for _, c := range all {
			c.GoExpress()
		}
	}
	f.WaitExpress()
	f.WantUnbroken()
	b.WantNoInvalid()
	b.Daemon.Down()
	if left := b.Pins("*"); len(left) > 0 {
		t.Errorf("pins are left: %q", left)
	}
}

// A table that cannot grow stays as it is, says so, and grows when it can.
func TestCannotGrow(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, fewSlots(false))
	f := b.StartTraffic()
	f.WaitExpress()
	next := len(b.Pins("page*"))
	obstacle := strings.TrimSuffix(b.Pins("page0")[0], "0") + fmt.Sprint(next)
	if err := os.Mkdir(obstacle, 0o700); err != nil {
		t.Fatal(err)
	}
	var all []*scontest.Connection
	for range 6 {
		c := b.Outgoing("udp", 1)
		c.MustPing(20)
		all = append(all, c)
	}
	scontest.Eventually(t, "the table says that it cannot grow", func() error { // a daemon without a CPU of its own is late
		for _, c := range all {
			c.MustPing(1)
		}
		if s := b.Status(); s.Table.Why == "" {
			return fmt.Errorf("%+v with %d entries", s.Table, s.Totals.Entries)
		}
		return nil
	})
	if s := b.Status(); s.Totals.Entries >= 8 || !strings.Contains(b.Daemon.Log(), "the table cannot grow") {
		t.Errorf("%+v with %d entries", s.Table, s.Totals.Entries)
	}
	f.WaitExpress()
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Second) // the daemon tries again no earlier
	for _, c := range all {
		c.GoExpress()
	}
	if s := b.Status(); s.Table.Why != "" {
		t.Errorf("%+v", s.Table)
	}
	f.WantUnbroken()
	b.WantNoInvalid()
}
