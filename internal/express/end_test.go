package express_test

import (
	"errors"
	"io"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// A connection that is deleted from conntrack loses its Conentry at once, and
// continues as without SCON: picked up in the middle.
func TestConntrackDelete(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	for name, connect := range scontest.Directions {
		for _, proto := range []string{"tcp", "udp"} {
			t.Run(name+" "+proto, func(t *testing.T) {
				c := connect(b.In(t), proto, 1).GoExpress()
				if proto == "tcp" {
					time.Sleep(100 * time.Millisecond) // no acknowledgement is delayed any more
				}
				b.Sh(lab.Device, "conntrack -D --orig-src "+c.MustFlow().Orig.Src)
				c.WaitGone()
				c.GoExpress()
				c.Exchange(1 << 20)
				b.WantNoInvalid()
			})
		}
	}
}

// SCON does not change how connections end.
func TestEnd(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	for name, connect := range scontest.Directions {
		t.Run(name+", closed", func(t *testing.T) {
			c := connect(b.In(t), "tcp", 1).GoExpress()
			c.Exchange(1 << 20)
			for _, e := range c.Ends() {
				if err := scontest.CloseWrite(e[0]); err != nil {
					t.Fatal(err)
				}
				scontest.WantEnd(t, e[1], io.EOF)
			}
			c.WaitGone()
		})
		t.Run(name+", reset", func(t *testing.T) {
			c := connect(b.In(t), "tcp", 1).GoExpress()
			if err := scontest.Reset(c.Client); err != nil {
				t.Fatal(err)
			}
			scontest.WantEnd(t, c.Server, syscall.ECONNRESET)
			c.WaitGone()
		})
		t.Run(name+", half closed", func(t *testing.T) {
			c := connect(b.In(t), "tcp", 1).GoExpress()
			if err := scontest.CloseWrite(c.Client); err != nil {
				t.Fatal(err)
			}
			scontest.WantEnd(t, c.Server, io.EOF)
			c.WaitGone()
			if _, err := scontest.TransferStream(c.Server, c.Client, 4<<20, 1); err != nil {
				t.Fatal(err)
			}
			if err := scontest.CloseWrite(c.Server); err != nil {
				t.Fatal(err)
			}
			scontest.WantEnd(t, c.Client, io.EOF)
		})
	}
	b.WantNoInvalid()
}

// The next connection with the same addresses and ports gets a Conentry of its
// own, however the one before has ended.
func TestReuse(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	for name, end := range map[string]func(c *scontest.Connection) error{
		"reset": func(c *scontest.Connection) error { return scontest.Reset(c.Client) },
		"closed by the server": func(c *scontest.Connection) error {
			if err := c.Server.Close(); err != nil {
				return err
			}
			_, err := c.Client.Read(make([]byte, 1))
			if !errors.Is(err, io.EOF) {
				return err
			}
			return c.Client.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			const port, local = 6000, 40000
			b := b.In(t)
			for range 4 {
				begun := time.Now()
				c := b.ConnectTo("tcp", lab.Container(1), lab.Edge, netip.AddrPortFrom(lab.EdgeAddr, port), port, local).GoExpress()
				if age := time.Duration(c.MustFlow().AgeMS) * time.Millisecond; age > time.Since(begun) {
					t.Errorf("the Conentry is older than the connection: %v", age)
				}
				c.Exchange(1 << 20)
				if err := end(c); err != nil {
					t.Fatal(err)
				}
				c.WaitGone()
			}
		})
	}
	b.WantNoInvalid()
}
