package faults

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// newcomers are TCP connections of a container that begin and end all the time: each is
// closed after so many exchanges of 64 bytes.
type newcomers struct {
	exchanges int
	stop      chan struct{}
	working   sync.WaitGroup
	ended     atomic.Uint64 // connections that were closed in order
	failed    chan error    // of the first that was not
}

// exchangesOfNew is twice what it takes until the daemon hears of a connection.
const exchangesOfNew = 12

// startNew has clients open connections one after the other, all together at most so many
// a second.
func startNew(b *scontest.Bed, clients, perSecond, exchanges int) *newcomers {
	b.T.Helper()
	n := &newcomers{exchanges: exchanges, stop: make(chan struct{}), failed: make(chan error, 1)}
	var l net.Listener
	err := b.Do(lab.Edge, func() (err error) {
		l, err = net.Listen("tcp4", netip.AddrPortFrom(lab.EdgeAddr, 0).String())
		return err
	})
	if err != nil {
		b.T.Fatal(err)
	}
	go echoAll(l)
	b.T.Cleanup(func() { l.Close() })
	for range clients {
		n.working.Go(func() {
			err := b.Do(lab.Container(1), func() error {
				return n.run(l.Addr().String(), time.Second*time.Duration(clients)/time.Duration(perSecond))
			})
			if err != nil {
				select {
				case n.failed <- err:
				default:
				}
			}
		})
	}
	return n
}

// echoAll answers all connections until the listener closes.
func echoAll(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
		}()
	}
}

// run makes connections, at most one in each interval, in the calling thread's namespace.
func (n *newcomers) run(addr string, interval time.Duration) error {
	pace := time.NewTicker(interval)
	defer pace.Stop()
	for {
		select {
		case <-n.stop:
			return nil
		case <-pace.C:
		}
		if err := exchangeNew(addr, n.exchanges); err != nil {
			return fmt.Errorf("connection %d: %w", n.ended.Load(), err)
		}
		n.ended.Add(1)
	}
}

// exchangeNew is one connection from its beginning to its end at both sides.
func exchangeNew(addr string, exchanges int) error {
	d := net.Dialer{Timeout: scontest.Patience}
	c, err := d.Dial("tcp4", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(scontest.Patience)); err != nil {
		return err
	}
	b := make([]byte, 64)
	for range exchanges {
		if _, err = c.Write(b); err == nil {
			_, err = io.ReadFull(c, b)
		}
		if err != nil {
			return err
		}
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	if _, err := c.Read(b); !errors.Is(err, io.EOF) {
		return fmt.Errorf("instead of the other side's end: %w", err)
	}
	return nil
}

// end waits for the last connections.
func (n *newcomers) end(t *testing.T) {
	t.Helper()
	close(n.stop)
	n.working.Wait()
	select {
	case err := <-n.failed:
		t.Error(err)
	default:
	}
}

// The daemon is killed again and again while connections begin and end: at any moment of
// composing them, conntrack has been made liberal before a packet goes past it. No packet
// is INVALID, no connection breaks, and conntrack hears of the end of each.
func TestKillAmongNewConnections(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		exchanges int
		short     bool
	}{
		"express": {exchangesOfNew, false},
		"short":   {1, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			killAmongNew(t, c.exchanges, c.short)
		})
	}
}

func killAmongNew(t *testing.T, exchanges int, short bool) {
	kills := long(8, 200)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	b := newExpress(t, scontest.Layout{Config: func(c *config.Config) { c.ShortConnections = short }})
	n := startNew(b, 8, long(1000, 5000), exchanges)
	goExpress := func() {
		t.Helper()
		scontest.Eventually(t, "new connections go express", func() error {
			if b.Status().Totals.ExpressPackets == 0 {
				return fmt.Errorf("none of %d, short connections: %+v", n.ended.Load(), b.Status().Short)
			}
			return nil
		})
	}
	goExpress()
	for range kills {
		time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
		b.Daemon.Kill()
		b.Up()
	}
	goExpress()
	n.end(t)
	t.Logf("%d connections", n.ended.Load())
	b.WantNoInvalid()
	scontest.Eventually(t, "conntrack has the end of all connections", func() error {
		if left := strings.Count(b.Sh(lab.Device, "conntrack -L -p tcp --state ESTABLISHED"), "ESTABLISHED"); left > 0 {
			return fmt.Errorf("it takes %d for established", left)
		}
		return nil
	})
}
