package express_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// States of conntrack (enum tcp_conntrack).
const (
	stateFinWait  = 4 // FIN seen in one direction; the next are those until both are acknowledged
	stateTimeWait = 7
)

// Conntrack follows each step by which an express connection ends: its table
// shows no ended connection as established.
func TestConntrackState(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	for name, connect := range scontest.Directions {
		for i, by := range []string{"client", "server"} {
			t.Run(name+", closed by the "+by, func(t *testing.T) {
				c := connect(b.In(t), "tcp", 1).GoExpress()
				c.Exchange(1 << 20)
				wantState(c, conntrack.TCPEstablished, conntrack.TCPEstablished)
				first, second := c.Ends()[i][0], c.Ends()[i][1]
				closeWrite(t, first)
				wantState(c, stateFinWait, stateTimeWait)
				closeWrite(t, second)
				wantState(c, stateTimeWait, stateTimeWait)
			})
		}
	}
	b.WantNoInvalid()
}

func closeWrite(t *testing.T, c net.Conn) {
	t.Helper()
	if err := scontest.CloseWrite(c); err != nil {
		t.Fatal(err)
	}
}

// wantState waits until conntrack has a connection in one of several states.
func wantState(c *scontest.Connection, least, most uint8) {
	c.B.T.Helper()
	orig := conntrack.Tuple{
		Proto: unix.IPPROTO_TCP,
		Src:   netip.MustParseAddrPort(c.Client.LocalAddr().String()),
		Dst:   netip.MustParseAddrPort(c.Client.RemoteAddr().String()),
	}
	scontest.Eventually(c.B.T, fmt.Sprintf("conntrack has a state of %d to %d", least, most), func() (err error) {
		var conn conntrack.Conn
		err = c.B.Do(lab.Device, func() error {
			ct, err := conntrack.Open()
			if err != nil {
				return err
			}
			defer ct.Close()
			conn, err = ct.Get(orig)
			return err
		})
		if err == nil && (conn.TCPState < least || conn.TCPState > most) {
			err = fmt.Errorf("it is %d", conn.TCPState)
		}
		return err
	})
}

// A connection that is older than the daemon, and whose entry conntrack judges by sequence
// numbers again, has another entry, which took the place of the one that the daemon knew: its
// Conentry is removed, though the ID may be the same.
func TestJudgedAgain(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{Config: func(c *config.Config) { c.FlushIdle = time.Hour }})
	c := b.Outgoing("tcp", 1)
	b.Up()
	c.GoExpress()
	err := b.Do(lab.Device, func() error {
		ct, err := conntrack.Open()
		if err != nil {
			return err
		}
		defer ct.Close()
		conn, err := ct.Get(conntrack.Tuple{Proto: unix.IPPROTO_TCP, Src: netip.AddrPortFrom(b.Addr(c.From), c.Port()), Dst: netip.MustParseAddrPort(c.Client.RemoteAddr().String())})
		if err != nil {
			return err
		}
		return ct.JudgeTCP(conn)
	})
	if err != nil {
		t.Fatal(err)
	}
	c.WaitGone()
}
