package scontest

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
	"github.com/scon-project/scon/test/bed/lab"
)

// Connection is a connection with both of its ends. Both have short deadlines:
// no operation blocks for ever.
type Connection struct {
	B              *Bed
	Proto          string // "tcp" or "udp"
	From           string // node
	Client, Server net.Conn
}

// Outgoing connects container n to edge.
func (b *Bed) Outgoing(proto string, n int) *Connection {
	b.T.Helper()
	return b.Connect(proto, lab.Container(n), lab.Edge, netip.AddrPortFrom(lab.EdgeAddr, 0))
}

// Incoming connects edge to container n's first published port.
func (b *Bed) Incoming(proto string, n int) *Connection {
	b.T.Helper()
	p := lab.Publications(n)[0]
	return b.ConnectTo(proto, lab.Edge, lab.Container(n), netip.AddrPortFrom(lab.DeviceAddr, p.Device), p.Container, 0)
}

// Outgoing6 and Incoming6 are the same over IPv6, in a lab that has it.
func (b *Bed) Outgoing6(proto string, n int) *Connection {
	b.T.Helper()
	return b.Connect(proto, lab.Container(n), lab.Edge, netip.AddrPortFrom(lab.EdgeAddr6, 0))
}

func (b *Bed) Incoming6(proto string, n int) *Connection {
	b.T.Helper()
	p := lab.Publications(n)[0]
	return b.ConnectTo(proto, lab.Edge, lab.Container(n), netip.AddrPortFrom(lab.DeviceAddr6, p.Device), p.Container, 0)
}

// network returns package net's name of a protocol over an address's family.
func network(proto string, addr netip.AddrPort) string {
	if addr.Addr().Is6() {
		return proto + "6"
	}
	return proto + "4"
}

// Directions are the directions in which SCON accelerates connections.
var Directions = map[string]func(b *Bed, proto string, n int) *Connection{
	"outgoing": (*Bed).Outgoing,
	"incoming": (*Bed).Incoming,
}

// Connect connects two nodes. Port 0 of addr selects a free one.
func (b *Bed) Connect(proto, from, to string, addr netip.AddrPort) *Connection {
	b.T.Helper()
	return b.ConnectTo(proto, from, to, addr, addr.Port(), 0)
}

// ConnectTo connects from a local port to addr, from which the network delivers to
// port listen of another node. Port 0 selects a free one.
func (b *Bed) ConnectTo(proto, from, to string, addr netip.AddrPort, listen, local uint16) *Connection {
	b.T.Helper()
	c := &Connection{B: b, Proto: proto, From: from}
	open := c.openTCP
	if proto == "udp" {
		open = c.openUDP
	}
	if err := open(to, addr, listen, local); err != nil {
		b.T.Fatalf("connect %s to %s: %v", from, to, err)
	}
	b.T.Cleanup(c.Close)
	return c
}

// Close closes both ends.
func (c *Connection) Close() {
	c.Client.Close()
	c.Server.Close()
}

// dial opens the client's end.
func (c *Connection) dial(addr netip.AddrPort, local uint16) error {
	d := net.Dialer{Timeout: Patience, Control: roomy, LocalAddr: &net.TCPAddr{Port: int(local)}}
	if c.Proto == "udp" {
		d.LocalAddr = &net.UDPAddr{Port: int(local)}
	}
	return c.B.Do(c.From, func() (err error) {
		c.Client, err = d.Dial(network(c.Proto, addr), addr.String())
		return err
	})
}

func (c *Connection) openTCP(to string, addr netip.AddrPort, port, local uint16) error {
	var l net.Listener
	err := c.B.Do(to, func() (err error) {
		for end := time.Now().Add(Patience); ; time.Sleep(time.Millisecond) {
			l, err = (&net.ListenConfig{Control: roomy}).Listen(context.Background(), network("tcp", addr), fmt.Sprintf(":%d", port))
			// A program that another test starts has the previous listener until its exec.
			if !errors.Is(err, unix.EADDRINUSE) || time.Now().After(end) {
				return err
			}
		}
	})
	if err != nil {
		return err
	}
	defer l.Close()
	if addr.Port() == 0 {
		addr = netip.AddrPortFrom(addr.Addr(), PortOf(l.Addr()))
	}
	if err := c.dial(addr, local); err != nil {
		return err
	}
	c.Server, err = l.Accept()
	return err
}

func (c *Connection) openUDP(to string, addr netip.AddrPort, port, local uint16) error {
	var l net.PacketConn
	err := c.B.Do(to, func() (err error) {
		at := fmt.Sprintf(":%d", port)
		if to == lab.Edge { // the node may have several source addresses
			at = netip.AddrPortFrom(addr.Addr(), port).String()
		}
		l, err = (&net.ListenConfig{Control: roomy}).ListenPacket(context.Background(), network("udp", addr), at)
		return err
	})
	if err != nil {
		return err
	}
	if addr.Port() == 0 {
		addr = netip.AddrPortFrom(addr.Addr(), PortOf(l.LocalAddr()))
	}
	server := &answering{UDPConn: l.(*net.UDPConn)}
	c.Server = server
	if err := c.dial(addr, local); err != nil {
		return err
	}
	if _, err := c.Client.Write([]byte("hello")); err != nil {
		return err
	}
	if err := l.SetReadDeadline(time.Now().Add(Patience)); err != nil {
		return err
	}
	_, server.peer, err = server.ReadFromUDPAddrPort(make([]byte, 1500))
	return err
}

// answering is the server's end of a UDP connection.
type answering struct {
	*net.UDPConn
	peer netip.AddrPort
}

func (a *answering) Write(b []byte) (int, error) { return a.WriteToUDPAddrPort(b, a.peer) }

// roomy gives a socket large buffers for bursts, and SO_REUSEADDR.
func roomy(_, _ string, raw syscall.RawConn) error {
	var err error
	control := raw.Control(func(fd uintptr) {
		err = errors.Join(
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	})
	return errors.Join(control, err)
}

// PortOf is the port of a socket address.
func PortOf(a net.Addr) uint16 { return netip.MustParseAddrPort(a.String()).Port() }

// Port returns the client's port.
func (c *Connection) Port() uint16 { return PortOf(c.Client.LocalAddr()) }

// Ends returns sender and receiver of the original direction, then of the reply
// direction.
func (c *Connection) Ends() [2][2]net.Conn {
	return [2][2]net.Conn{{c.Client, c.Server}, {c.Server, c.Client}}
}

// Ping sends a few bytes in both directions and checks that they arrive.
func (c *Connection) Ping() error {
	for _, e := range c.Ends() {
		if err := Pass(e[0], e[1], 64); err != nil {
			return err
		}
	}
	return nil
}

// Pass sends n bytes in one direction and checks that they arrive.
func Pass(from, to net.Conn, n int) error {
	sent, got := make([]byte, n), make([]byte, n)
	_, _ = rand.Read(sent) // never fails
	if _, err := from.Write(sent); err != nil {
		return err
	}
	if err := to.SetReadDeadline(time.Now().Add(Patience)); err != nil {
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

// MustPing pings n times.
func (c *Connection) MustPing(n int) {
	c.B.T.Helper()
	for range n {
		if err := c.Ping(); err != nil {
			c.B.T.Fatal(err)
		}
	}
}

// Is reports whether a flow belongs to this connection.
func (c *Connection) Is(f api.Flow) bool {
	from := netip.AddrPortFrom(netip.MustParseAddr(f.Orig.Src), f.Orig.Sport)
	to := netip.AddrPortFrom(netip.MustParseAddr(f.Orig.Dst), f.Orig.Dport)
	client := c.Client.LocalAddr().String()
	// Without a conntrack entry the original direction is unknown.
	return f.Proto == c.Proto && (from.String() == client || to.String() == client)
}

// Flow returns the connection's Conentry.
func (c *Connection) Flow() (api.Flow, error) {
	c.B.T.Helper()
	flows := c.B.Flows()
	for _, f := range flows {
		if c.Is(f) {
			return f, nil
		}
	}
	return api.Flow{}, fmt.Errorf("no Conentry for %s port %d; there are %+v", c.Proto, c.Port(), flows)
}

// MustFlow returns the connection's Conentry and fails if there is none.
func (c *Connection) MustFlow() api.Flow {
	c.B.T.Helper()
	f, err := c.Flow()
	if err != nil {
		c.B.T.Fatal(err)
	}
	return f
}

// WaitGone waits until the connection has no Conentry.
func (c *Connection) WaitGone() {
	c.B.T.Helper()
	Eventually(c.B.T, "the Conentry is removed", func() error {
		if f, err := c.Flow(); err == nil {
			return fmt.Errorf("%+v", f)
		}
		return nil
	})
}

// WaitExpress waits until packets take the express path in both directions.
// traffic sends some; it may be nil if others send.
func (c *Connection) WaitExpress(traffic func() error) {
	c.B.T.Helper()
	var first *api.Flow
	Eventually(c.B.T, "express in both directions", func() error {
		if traffic != nil {
			if err := traffic(); err != nil {
				c.B.T.Fatal(err)
			}
		}
		f, err := c.Flow()
		if err != nil {
			return err
		}
		if first == nil {
			first = &f
		}
		was, is := first.ExpressPackets, f.ExpressPackets
		if f.State != api.FlowExpress || is[0] <= was[0] || is[1] <= was[1] {
			return fmt.Errorf("the Conentry was %+v, is %+v", *first, f)
		}
		return nil
	})
}

// GoExpress pings until the connection is express in both directions.
func (c *Connection) GoExpress() *Connection {
	c.B.T.Helper()
	c.WaitExpress(c.Ping)
	return c
}

// In returns the connection for a subtest.
func (c *Connection) In(b *Bed) *Connection {
	sub := *c
	sub.B = b
	return &sub
}

// WaitExpressOriginal waits until packets of the original direction take the express
// path.
func (c *Connection) WaitExpressOriginal() {
	c.B.T.Helper()
	before := c.MustFlow().ExpressPackets[0]
	Eventually(c.B.T, "express", func() error {
		if now := c.MustFlow().ExpressPackets[0]; now <= before {
			return fmt.Errorf("%d packets", now)
		}
		return nil
	})
}

// ArriveFrom sends from the client until a datagram arrives with that source
// address, and answers it.
func (c *Connection) ArriveFrom(want netip.Addr) {
	c.B.T.Helper()
	server := c.Server.(*answering)
	buf := make([]byte, 1500)
	Eventually(c.B.T, "packets arrive from "+want.String(), func() error {
		if _, err := c.Client.Write([]byte("x")); err != nil {
			return err
		}
		_ = server.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, from, err := server.ReadFromUDPAddrPort(buf)
		if err == nil && from.Addr() != want {
			err = fmt.Errorf("a packet arrived from %v", from)
		}
		server.peer = from
		return err
	})
	for err := error(nil); err == nil; { // drain datagrams in flight
		_ = server.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		_, err = server.Read(buf)
	}
}

// ReadDatagram reads a datagram.
func ReadDatagram(c net.Conn) (string, error) {
	buf := make([]byte, 1500)
	_ = c.SetReadDeadline(time.Now().Add(Patience))
	n, err := c.Read(buf)
	return string(buf[:n]), err
}
