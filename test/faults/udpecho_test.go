package faults

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// pairs are UDP connections of a container to one echo server at edge, which are used
// one after the other.
type pairs struct {
	echo    netip.AddrPort
	clients []net.Conn
}

// openPairs opens n connections of a container of the lab.
func openPairs(b *scontest.Bed, container, n int) *pairs {
	b.T.Helper()
	return openPairsIn(b, b.Node(lab.Container(container)), n)
}

// openPairsIn opens n connections in a container's namespace.
func openPairsIn(b *scontest.Bed, namespace string, n int) *pairs {
	b.T.Helper()
	p := &pairs{echo: startEcho(b), clients: make([]net.Conn, n)}
	err := netns.Do(namespace, func() (err error) {
		for i := range p.clients {
			if p.clients[i], err = net.Dial("udp4", p.echo.String()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(p.close)
	return p
}

// close closes the container's sockets.
func (p *pairs) close() {
	for _, c := range p.clients {
		c.Close()
	}
}

// pass sends a datagram on each connection and waits for its echo.
func (p *pairs) pass(t *testing.T) {
	t.Helper()
	buf := make([]byte, 100)
	for i, c := range p.clients {
		word := fmt.Sprint(i)
		if _, err := c.Write([]byte(word)); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		_ = c.SetReadDeadline(time.Now().Add(scontest.Patience))
		if n, err := c.Read(buf); err != nil || string(buf[:n]) != word {
			t.Fatalf("connection %d: read %q, %v", i, buf[:n], err)
		}
	}
}

// startEcho echoes datagrams at edge until the test ends.
func startEcho(b *scontest.Bed) netip.AddrPort {
	b.T.Helper()
	var echo *net.UDPConn
	err := b.Do(lab.Edge, func() (err error) {
		echo, err = net.ListenUDP("udp4", &net.UDPAddr{IP: lab.EdgeAddr.AsSlice()})
		return err
	})
	if err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() { echo.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := echo.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
			if err == nil {
				_, _ = echo.WriteToUDPAddrPort(buf[:n], from)
			}
		}
	}()
	return echo.LocalAddr().(*net.UDPAddr).AddrPort()
}
