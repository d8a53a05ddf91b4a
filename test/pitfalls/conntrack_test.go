package pitfalls

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// trackedConn is conntrack's entry of a connection.
type trackedConn struct {
	line    string
	timeout int // seconds
	id      string
}

var trackedLine = regexp.MustCompile(`(?m)^(?:tcp|udp) +\d+ +(\d+) .* id=(\d+)$`)

// tracked returns a connection's entry in conntrack, which must exist.
func tracked(c *scontest.Connection) trackedConn {
	c.B.T.Helper()
	out := c.B.Sh(lab.Device, fmt.Sprintf("conntrack -L -o id -p %s --orig-src %v --orig-port-src %d",
		c.Proto, c.B.Addr(c.From), scontest.PortOf(c.Client.LocalAddr())))
	found := trackedLine.FindStringSubmatch(out)
	if found == nil {
		c.B.T.Fatalf("conntrack has no entry for %s port %v: %s", c.Proto, c.Client.LocalAddr(), out)
	}
	timeout, err := strconv.Atoi(found[1])
	if err != nil {
		c.B.T.Fatal(err)
	}
	return trackedConn{found[0], timeout, found[2]}
}

// An express connection leaves the window that conntrack has recorded. Its first regular
// packet afterwards must not be INVALID, since the lab's rules drop INVALID packets.
func TestFirstRegularPacketIsNotInvalid(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Offload: true})
	for name, connect := range scontest.Directions {
		t.Run(name, func(t *testing.T) {
			b := b.In(t)
			c := connect(b, "tcp", 1).GoExpress()
			c.Exchange(32 << 20)
			if err := b.Daemon.Pause(""); err != nil {
				t.Fatal(err)
			}
			before := c.MustFlow().ExpressPackets
			c.Exchange(4 << 20)
			if now := c.MustFlow().ExpressPackets; now != before {
				t.Errorf("express packets while paused: %v, before %v", now, before)
			}
			if err := b.Daemon.Resume(""); err != nil {
				t.Fatal(err)
			}
			c.GoExpress()
		})
	}
	b.WantNoInvalid()
}

// A single RST ends a connection: the receiver gets it, the Conentry is removed, and
// conntrack uses the timeout of closed connections.
func TestSingleRSTEndsEntry(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Offload: true})
	for name, connect := range scontest.Directions {
		for i, by := range []string{"client", "server"} {
			t.Run(name+", by the "+by, func(t *testing.T) {
				c := connect(b.In(t), "tcp", 1).GoExpress()
				c.Exchange(8 << 20)
				ends := c.Ends()[i]
				if err := scontest.Reset(ends[0]); err != nil {
					t.Fatal(err)
				}
				scontest.WantEnd(t, ends[1], syscall.ECONNRESET)
				c.WaitGone()
				const closed = 10 // net.netfilter.nf_conntrack_tcp_timeout_close
				if conn := tracked(c); conn.timeout > closed {
					t.Errorf("conntrack keeps it for more than %d s: %s", closed, conn.line)
				}
			})
		}
	}
	b.WantNoInvalid()
}

// While packets flow, the regular ones among them refresh conntrack's timeout,
// also across a reload of the rules.
func TestLiveFlowDoesNotExpire(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{})
	b.Sh(lab.Device, `
		sysctl -qw net.netfilter.nf_conntrack_udp_timeout=4
		sysctl -qw net.netfilter.nf_conntrack_udp_timeout_stream=4
		sysctl -qw net.netfilter.nf_conntrack_tcp_timeout_established=4`)
	b.Up()
	f := b.StartTraffic()
	f.WaitExpress()
	conns := []*scontest.Connection{f.Stream.C, f.Datagrams}
	var ids []string
	for _, c := range conns {
		ids = append(ids, tracked(c).id)
	}
	rules := filepath.Join(t.TempDir(), "rules")
	b.Sh(lab.Device, "iptables-nft-save -f "+rules)
	for range 4 {
		b.Sh(lab.Device, "iptables-nft-restore "+rules)
		time.Sleep(2 * time.Second) // longer than conntrack's timeout
		f.Proceed()
		f.WaitExpress()
	}
	for i, c := range conns {
		if now := tracked(c); now.id != ids[i] {
			t.Errorf("conntrack has a new entry for %s: %s, it was %s", c.Proto, now.line, ids[i])
		}
	}
	f.WantUnbroken()
	b.WantNoInvalid()
}

// A flow without replies stays unreplied in conntrack, with the short timeout;
// one with replies gets the long timeout.
func TestUnrepliedFlowKeepsShortTimeout(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	const short = 30 // net.netfilter.nf_conntrack_udp_timeout
	unreplied, replied := b.Outgoing("udp", 1), b.Outgoing("udp", 1)
	numbers := scontest.SendNumbers(t, unreplied.Client, unreplied.Server, 1, time.Millisecond)
	numbers.Proceed(t, 100)
	unreplied.WaitExpressOriginal()
	scontest.Eventually(t, "conntrack marks the answered flow as a stream", func() error {
		replied.GoExpress()
		if conn := tracked(replied); !strings.Contains(conn.line, "[ASSURED]") || conn.timeout <= short {
			return fmt.Errorf("it is %s", conn.line)
		}
		return nil
	})
	if conn := tracked(unreplied); !strings.Contains(conn.line, "[UNREPLIED]") || conn.timeout > short {
		t.Errorf("conntrack's entry without replies: %s", conn.line)
	}
	numbers.WantAll(t, "numbers without replies")
}

// Two connections with equal tuples get different ports outside: requests arrive from
// these ports, and replies reach the right container.
func TestRepliesReachTheSender(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Containers: 2})
	const port, local = 6000, 40000
	var conns []*scontest.Connection
	outside := make(map[uint16]bool)
	for n := 1; n <= 2; n++ {
		c := b.ConnectTo("tcp", lab.Container(n), lab.Edge, netip.AddrPortFrom(lab.EdgeAddr, port), port, local).GoExpress()
		to := c.MustFlow().Reply
		if from := netip.AddrPortFrom(lab.DeviceAddr, to.Dport).String(); to.Dst != lab.DeviceAddr.String() || c.Server.RemoteAddr().String() != from {
			t.Errorf("replies go to %v, edge sees %v", to, c.Server.RemoteAddr())
		}
		outside[to.Dport] = true
		conns = append(conns, c)
	}
	if len(outside) != 2 {
		t.Errorf("ports outside: %v", outside)
	}
	for range 3 {
		for _, c := range conns {
			c.Exchange(1 << 20)
		}
	}
	b.WantNoInvalid()
}

// In a flow without replies only requests are express. The first reply reaches the
// sender.
func TestReplyToOneWayFlow(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	for name, connect := range scontest.Directions {
		t.Run(name, func(t *testing.T) {
			c := connect(b.In(t), "udp", 1)
			numbers := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
			numbers.Proceed(t, 100)
			c.WaitExpressOriginal()
			numbers.WantAll(t, "requests")
			for range 20 {
				// The client's socket is connected.
				if err := scontest.Pass(c.Server, c.Client, 100); err != nil {
					t.Fatal(err)
				}
			}
			c.GoExpress()
		})
	}
	b.WantNoInvalid()
}

// A connection whose idle Conentry was removed gets a new one, and its conntrack state
// is unchanged.
func TestIdleFlowIsCollectedAndComesBack(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Config: func(c *config.Config) { c.FlushIdle = time.Second }})
	for name, connect := range scontest.Directions {
		t.Run(name, func(t *testing.T) {
			c := connect(b.In(t), "tcp", 1).GoExpress()
			c.Exchange(4 << 20)
			id := tracked(c).id
			c.WaitGone()
			c.Exchange(4 << 20)
			c.GoExpress()
			if now := tracked(c); now.id != id {
				t.Errorf("conntrack has a new entry: %s", now.line)
			}
		})
	}
	b.WantNoInvalid()
}
