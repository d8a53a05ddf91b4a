package daemon_test

import (
	"io"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/lab"
)

// A connection that conntrack has picked up in the middle while no daemon was
// there is taken over only if the next one would compose it.
func TestAdoptPickedUp(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{})
	c := b.outgoing("tcp", 1).goExpress()
	b.daemon.kill()
	time.Sleep(heartbeat)
	b.sh(lab.Device, `
		nft add table ip deaf
		nft add chain ip deaf prerouting { type filter hook prerouting priority -400 ; }
		nft add rule ip deaf prerouting ip saddr 10.77.0.2 drop
		conntrack -D -p tcp`)
	if _, err := c.client.Write(make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
	b.up()
	if f, err := c.flow(); err == nil {
		t.Errorf("a connection without an answer was taken over: %+v", f)
	}
	b.sh(lab.Device, "nft delete table ip deaf")
	if err := readAll(c, 64); err != nil {
		t.Fatal(err)
	}
	c.goExpress()
	b.wantNoInvalid()
}

// readAll reads what the server's end has been sent.
func readAll(c *connection, n int) error {
	if err := c.server.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err := io.ReadFull(c.server, make([]byte, n))
	return err
}

// Nothing goes express by the heartbeat of a daemon that was killed, once the
// next one has begun: it need not have read the rules.
func TestBeginInert(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{})
	f := b.startTraffic()
	f.waitExpress()
	b.daemon.kill()
	task := b.task()
	task.Config.Bridges = config.Devices{"nosuch0"} // ends it as it begins
	b.launch(task).refused()
	before := b.expressPackets()
	f.proceed()
	if now := b.expressPackets(); now != before {
		t.Errorf("%d packets went express", now-before)
	}
	b.up()
	f.waitExpress()
	f.wantUnbroken()
}

// No lease is left of what does not go express.
func TestPausedLease(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{})
	c := b.outgoing("udp", 1).goExpress()
	time.Sleep(2500 * time.Millisecond) // pausing sets the heartbeat back by 2 s
	if err := b.daemon.Pause(""); err != nil {
		t.Fatal(err)
	}
	if f := c.mustFlow(); f.LeaseMS != 0 {
		t.Errorf("%d ms", f.LeaseMS)
	}
}
