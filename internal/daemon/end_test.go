package daemon_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/lab"
)

// A connection that conntrack is told to forget loses its Conentry at once, and
// goes on as it does without SCON: picked up where it is.
func TestConntrackDelete(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{})
	for name, connect := range directions {
		for _, proto := range []string{"tcp", "udp"} {
			t.Run(name+" "+proto, func(t *testing.T) {
				c := connect(b.in(t), proto, 1).goExpress()
				if proto == "tcp" {
					time.Sleep(100 * time.Millisecond) // no acknowledgement is delayed any more
				}
				b.sh(lab.Device, "conntrack -D --orig-src "+c.mustFlow().Orig.Src)
				c.waitGone()
				c.goExpress()
				c.exchange(1 << 20)
				b.wantNoInvalid()
			})
		}
	}
}

// How a connection ends is nothing that an express way may touch.
func TestEnd(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{})
	for name, connect := range directions {
		t.Run(name+", closed", func(t *testing.T) {
			c := connect(b.in(t), "tcp", 1).goExpress()
			c.exchange(1 << 20)
			for _, e := range c.ends() {
				if err := closeWrite(e[0]); err != nil {
					t.Fatal(err)
				}
				wantEnd(t, e[1], io.EOF)
			}
			c.waitGone()
		})
		t.Run(name+", reset", func(t *testing.T) {
			c := connect(b.in(t), "tcp", 1).goExpress()
			if err := reset(c.client); err != nil {
				t.Fatal(err)
			}
			wantEnd(t, c.server, syscall.ECONNRESET)
			c.waitGone()
		})
		t.Run(name+", half closed", func(t *testing.T) {
			c := connect(b.in(t), "tcp", 1).goExpress()
			if err := closeWrite(c.client); err != nil {
				t.Fatal(err)
			}
			wantEnd(t, c.server, io.EOF)
			c.waitGone()
			if _, err := transferStream(c.server, c.client, 4<<20, 1); err != nil {
				t.Fatal(err)
			}
			if err := closeWrite(c.server); err != nil {
				t.Fatal(err)
			}
			wantEnd(t, c.client, io.EOF)
		})
	}
	b.wantNoInvalid()
}

// The next connection of the same addresses and ports has a Conentry of its
// own, however the one before has ended.
func TestReuse(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{})
	for name, end := range map[string]func(c *connection) error{
		"reset": func(c *connection) error { return reset(c.client) },
		"closed by the server": func(c *connection) error {
			if err := c.server.Close(); err != nil {
				return err
			}
			_, err := c.client.Read(make([]byte, 1))
			if !errors.Is(err, io.EOF) {
				return err
			}
			return c.client.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			const port, local = 6000, 40000
			b := b.in(t)
			for range 4 {
				begun := time.Now()
				c := b.connectTo("tcp", lab.Container(1), lab.Edge, netip.AddrPortFrom(lab.EdgeAddr, port), port, local).goExpress()
				if age := time.Duration(c.mustFlow().AgeMS) * time.Millisecond; age > time.Since(begun) {
					t.Errorf("the Conentry is older than the connection: %v", age)
				}
				c.exchange(1 << 20)
				if err := end(c); err != nil {
					t.Fatal(err)
				}
				c.waitGone()
			}
		})
	}
	b.wantNoInvalid()
}

func closeWrite(c net.Conn) error { return c.(*net.TCPConn).CloseWrite() }

// reset ends a connection with a RST.
func reset(c net.Conn) error {
	if err := c.(*net.TCPConn).SetLinger(0); err != nil {
		return err
	}
	return c.Close()
}

// wantEnd reads the end of a connection.
func wantEnd(t *testing.T, c net.Conn, want error) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, want) {
		t.Errorf("read %d bytes, %v; want %v", n, err, want)
	}
}
