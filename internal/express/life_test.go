package express_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/test/bed/scontest"
)

// A killed daemon breaks no connection. Packets go express for a second, then
// regular; the next daemon takes the Conentries over.
func TestKill(t *testing.T) {
	t.Parallel()
	for _, clsact := range []bool{false, true} {
		t.Run(map[bool]string{false: "tcx", true: "clsact"}[clsact], func(t *testing.T) {
			b := scontest.NewExpress(t, scontest.Layout{Clsact: clsact})
			f := b.StartTraffic()
			f.WaitExpress()
			before := [2][2]uint64{f.Stream.C.MustFlow().ExpressPackets, f.Datagrams.MustFlow().ExpressPackets}

			b.Daemon.Kill()
			time.Sleep(scontest.Heartbeat)
			dead := b.ExpressPackets()
			f.Proceed()
			if now := b.ExpressPackets(); now != dead {
				t.Errorf("%d packets went express without a daemon", now-dead)
			}

			b.Up()
			for i, c := range []*scontest.Connection{f.Stream.C, f.Datagrams} {
				for dir, n := range c.MustFlow().ExpressPackets {
					if n < before[i][dir] {
						t.Errorf("%s, direction %d: %d express packets, before the restart %d", c.Proto, dir, n, before[i][dir])
					}
				}
			}
			f.WaitExpress()
			f.WantUnbroken()
			b.WantNoInvalid()
		})
	}
}

// The daemon is killed at any moment, including its start.
func TestKillAtAnyMoment(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	f := b.StartTraffic()
	f.WaitExpress()
	for range 10 {
		b.Daemon.Kill()
		b.Daemon = b.Launch(b.Task())
		time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond)
	}
	b.Daemon.Kill()
	b.Up()
	f.WaitExpress()
	f.Proceed()
	f.WantUnbroken()
	b.WantNoInvalid()
}

// What an earlier daemon pinned is taken over only if it fits. Otherwise the
// next one starts without state; packets do not notice.
func TestPinsOfAnother(t *testing.T) {
	t.Parallel()
	for name, alter := range map[string]func(b *scontest.Bed) error{
		"layout": func(b *scontest.Bed) error {
			var s datapath.Settings
			m := b.Pinned("settings")
			if err := m.Lookup(uint32(0), &s); err != nil {
				return err
			}
			s.Layout = datapath.LayoutVersion + 1
			return m.Put(uint32(0), s)
		},
		"size": func(b *scontest.Bed) error {
			b.Config.Connections *= 1024
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := scontest.NewExpress(t, scontest.Layout{Config: func(c *config.Config) { c.Connections = 256 }})
			f := b.StartTraffic()
			f.WaitExpress()
			b.Daemon.Kill()
			time.Sleep(scontest.Heartbeat)
			if err := alter(b); err != nil {
				t.Fatal(err)
			}
			b.Up()
			if strings.Contains(b.Daemon.Log(), "took over") {
				t.Errorf("a table that does not fit was taken over:\n%s", b.Daemon.Log())
			}
			f.WaitExpress()
			f.WantUnbroken()
			b.WantNoInvalid()
		})
	}
}
