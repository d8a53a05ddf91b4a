package express_test

import (
	"io"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// A connection that conntrack has picked up in the middle, while no daemon
// ran, is taken over only if the next daemon would compose it.
func TestAdoptPickedUp(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	c := b.Outgoing("tcp", 1).GoExpress()
	b.Daemon.Kill()
	time.Sleep(scontest.Heartbeat)
	b.Sh(lab.Device, `
		nft add table ip deaf
		nft add chain ip deaf prerouting { type filter hook prerouting priority -400 ; }
		nft add rule ip deaf prerouting ip saddr 10.77.0.2 drop
		conntrack -D -p tcp`)
	if _, err := c.Client.Write(make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
	b.Up()
	if f, err := c.Flow(); err == nil {
		t.Errorf("a connection without an answer was taken over: %+v", f)
	}
	b.Sh(lab.Device, "nft delete table ip deaf")
	if err := readAll(c, 64); err != nil {
		t.Fatal(err)
	}
	c.GoExpress()
	b.WantNoInvalid()
}

// readAll reads what the server's end was sent.
func readAll(c *scontest.Connection, n int) error {
	if err := c.Server.SetReadDeadline(time.Now().Add(scontest.Patience)); err != nil {
		return err
	}
	_, err := io.ReadFull(c.Server, make([]byte, n))
	return err
}

// Nothing goes express by the heartbeat of a killed daemon once the next one
// has started: it may not have read the rules.
func TestBeginInert(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	f := b.StartTraffic()
	f.WaitExpress()
	b.Daemon.Kill()
	task := b.Task()
	task.Config.Bridges = config.Devices{"nosuch0"} // ends it as it begins
	b.Launch(task).Refused()
	before := b.ExpressPackets()
	f.Proceed()
	if now := b.ExpressPackets(); now != before {
		t.Errorf("%d packets went express", now-before)
	}
	b.Up()
	f.WaitExpress()
	f.WantUnbroken()
}

// Connections that do not go express have no lease left.
func TestPausedLease(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	c := b.Outgoing("udp", 1).GoExpress()
	time.Sleep(2500 * time.Millisecond) // pausing sets the heartbeat back by 2 s
	if err := b.Daemon.Pause(""); err != nil {
		t.Fatal(err)
	}
	if f := c.MustFlow(); f.LeaseMS != 0 {
		t.Errorf("%d ms", f.LeaseMS)
	}
}

// Where the settings keep containers regular, Conentries of the others are taken over.
func TestAdoptSelected(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{Containers: 2})
	b.Config.Regular = []config.Selector{{Name: "none"}, {Label: "none.has.it"}}
	b.Up()
	c := b.Outgoing("tcp", 1).GoExpress()
	before := c.MustFlow().ExpressPackets
	b.Daemon.Kill()
	b.Up()
	for dir, n := range c.MustFlow().ExpressPackets {
		if n < before[dir] {
			t.Errorf("direction %d: %d express packets, before the restart %d", dir, n, before[dir])
		}
	}
	c.GoExpress()
}
