package daemon_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/lab"
)

// connection is one with both of its ends, whose deadlines are near: nothing
// here waits for ever.
type connection struct {
	b              *bed
	proto          string // "tcp" or "udp"
	from           string // node
	client, server net.Conn
}

// outgoing connects container n with edge.
func (b *bed) outgoing(proto string, n int) *connection {
	b.t.Helper()
	return b.connect(proto, lab.Container(n), lab.Edge, netip.AddrPortFrom(lab.EdgeAddr, 0))
}

// incoming connects edge with container n's first published port.
func (b *bed) incoming(proto string, n int) *connection {
	b.t.Helper()
	p := lab.Publications(n)[0]
	return b.connectTo(proto, lab.Edge, lab.Container(n), netip.AddrPortFrom(lab.DeviceAddr, p.Device), p.Container, 0)
}

// directions are the ways to connect that SCON knows.
var directions = map[string]func(b *bed, proto string, n int) *connection{
	"outgoing": (*bed).outgoing,
	"incoming": (*bed).incoming,
}

// connect connects two nodes; port 0 of addr is a free one.
func (b *bed) connect(proto, from, to string, addr netip.AddrPort) *connection {
	b.t.Helper()
	return b.connectTo(proto, from, to, addr, addr.Port(), 0)
}

// connectTo connects from a local port to addr, where packets reach a port of
// another node. 0 is a free port.
func (b *bed) connectTo(proto, from, to string, addr netip.AddrPort, listen, local uint16) *connection {
	b.t.Helper()
	c := &connection{b: b, proto: proto, from: from}
	open := c.openTCP
	if proto == "udp" {
		open = c.openUDP
	}
	if err := open(to, addr, listen, local); err != nil {
		b.t.Fatalf("connecting %s with %s: %v", from, to, err)
	}
	b.t.Cleanup(c.close)
	return c
}

func (c *connection) close() {
	c.client.Close()
	c.server.Close()
}

// dial opens the client's end.
func (c *connection) dial(addr netip.AddrPort, local uint16) error {
	d := net.Dialer{Timeout: patience, Control: roomy, LocalAddr: &net.TCPAddr{Port: int(local)}}
	if c.proto == "udp" {
		d.LocalAddr = &net.UDPAddr{Port: int(local)}
	}
	return c.b.Do(c.from, func() (err error) {
		c.client, err = d.Dial(c.proto+"4", addr.String())
		return err
	})
}

func (c *connection) openTCP(to string, addr netip.AddrPort, port, local uint16) error {
	var l net.Listener
	err := c.b.Do(to, func() (err error) {
		l, err = (&net.ListenConfig{Control: roomy}).Listen(context.Background(), "tcp4", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		return err
	}
	defer l.Close()
	if addr.Port() == 0 {
		addr = netip.AddrPortFrom(addr.Addr(), portOf(l.Addr()))
	}
	if err := c.dial(addr, local); err != nil {
		return err
	}
	c.server, err = l.Accept()
	return err
}

func (c *connection) openUDP(to string, addr netip.AddrPort, port, local uint16) error {
	var l net.PacketConn
	err := c.b.Do(to, func() (err error) {
		at := fmt.Sprintf(":%d", port)
		if to == lab.Edge { // it may have several addresses to answer from
			at = fmt.Sprintf("%v:%d", addr.Addr(), port)
		}
		l, err = (&net.ListenConfig{Control: roomy}).ListenPacket(context.Background(), "udp4", at)
		return err
	})
	if err != nil {
		return err
	}
	if addr.Port() == 0 {
		addr = netip.AddrPortFrom(addr.Addr(), portOf(l.LocalAddr()))
	}
	server := &answering{UDPConn: l.(*net.UDPConn)}
	c.server = server
	if err := c.dial(addr, local); err != nil {
		return err
	}
	if _, err := c.client.Write([]byte("hello")); err != nil {
		return err
	}
	if err := l.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, server.peer, err = server.ReadFromUDPAddrPort(make([]byte, 1500))
	return err
}

// answering is the end of a UDP connection that was called.
type answering struct {
	*net.UDPConn
	peer netip.AddrPort
}

func (a *answering) Write(b []byte) (int, error) { return a.WriteToUDPAddrPort(b, a.peer) }

// roomy gives a socket room for bursts, and its port back at once.
func roomy(_, _ string, raw syscall.RawConn) error {
	var err error
	control := raw.Control(func(fd uintptr) {
		err = errors.Join(
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	})
	return errors.Join(control, err)
}

func portOf(a net.Addr) uint16 { return netip.MustParseAddrPort(a.String()).Port() }

// port is the client's.
func (c *connection) port() uint16 { return portOf(c.client.LocalAddr()) }

// ends are from and to of the original direction, then of the reply's.
func (c *connection) ends() [2][2]net.Conn {
	return [2][2]net.Conn{{c.client, c.server}, {c.server, c.client}}
}

// ping sends a few bytes both ways, which must arrive.
func (c *connection) ping() error {
	for _, e := range c.ends() {
		if err := pass(e[0], e[1], 64); err != nil {
			return err
		}
	}
	return nil
}

// pass sends some bytes one way, which must arrive.
func pass(from, to net.Conn, n int) error {
	sent, got := make([]byte, n), make([]byte, n)
	_, _ = rand.Read(sent) // never fails
	if _, err := from.Write(sent); err != nil {
		return err
	}
	if err := to.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.ReadFull(to, got); err != nil {
		return err
	}
	if !bytes.Equal(sent, got) {
		return fmt.Errorf("sent %x, arrived %x", sent, got)
	}
	return nil
}

// mustPing pings n times.
func (c *connection) mustPing(n int) {
	c.b.t.Helper()
	for range n {
		if err := c.ping(); err != nil {
			c.b.t.Fatal(err)
		}
	}
}

// is tells whether a flow is of this connection.
func (c *connection) is(f api.Flow) bool {
	return f.Proto == c.proto && f.Orig.Src == c.b.Addr(c.from).String() && f.Orig.Sport == c.port()
}

// flow is the connection's Conentry.
func (c *connection) flow() (api.Flow, error) {
	c.b.t.Helper()
	flows := c.b.flows()
	for _, f := range flows {
		if c.is(f) {
			return f, nil
		}
	}
	return api.Flow{}, fmt.Errorf("no Conentry for %s port %d; there are %+v", c.proto, c.port(), flows)
}

// mustFlow is the connection's Conentry, which must be there.
func (c *connection) mustFlow() api.Flow {
	c.b.t.Helper()
	f, err := c.flow()
	if err != nil {
		c.b.t.Fatal(err)
	}
	return f
}

// waitGone waits until the connection has no Conentry.
func (c *connection) waitGone() {
	c.b.t.Helper()
	eventually(c.b.t, "the Conentry goes", func() error {
		if f, err := c.flow(); err == nil {
			return fmt.Errorf("%+v", f)
		}
		return nil
	})
}

// waitExpress waits until packets go express both ways. traffic makes some; it
// may be nil if there are some anyhow.
func (c *connection) waitExpress(traffic func() error) {
	c.b.t.Helper()
	var first *api.Flow
	eventually(c.b.t, "express both ways", func() error {
		if traffic != nil {
			if err := traffic(); err != nil {
				c.b.t.Fatal(err)
			}
		}
		f, err := c.flow()
		if err != nil {
			return err
		}
		if first == nil {
			first = &f
		}
		was, is := first.ExpressPackets, f.ExpressPackets
		if f.State != api.FlowExpress || is[0] <= was[0] || is[1] <= was[1] {
			return fmt.Errorf("it was %+v, is %+v", *first, f)
		}
		return nil
	})
}

// goExpress pings until the connection is express both ways.
func (c *connection) goExpress() *connection {
	c.b.t.Helper()
	c.waitExpress(c.ping)
	return c
}
