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
	"github.com/scon-project/scon/internal/lab"
	"github.com/scon-project/scon/internal/lab/scontest"
)

// trackedConn is what conntrack says of a connection.
type trackedConn struct {
	line    string
	timeout int // seconds
	id      string
}

var trackedLine = regexp.MustCompile(`(?m)^(?:tcp|udp) +\d+ +(\d+) .* id=(\d+)$`)

// tracked finds a connection in conntrack, which must know it.
func tracked(c *scontest.Connection) trackedConn {
	c.B.T.Helper()
	out := c.B.Sh(lab.Device, fmt.Sprintf("conntrack -L -o id -p %s --orig-src %v --orig-port-src %d",
		c.Proto, c.B.Addr(c.From), scontest.PortOf(c.Client.LocalAddr())))
	found := trackedLine.FindStringSubmatch(out)
	if found == nil {
		c.B.T.Fatalf("conntrack does not know %s port %v: %s", c.Proto, c.Client.LocalAddr(), out)
	}
	timeout, err := strconv.Atoi(found[1])
	if err != nil {
		c.B.T.Fatal(err)
	}
	return trackedConn{found[0], timeout, found[2]}
}

// A connection that has gone express is as far as it likes from what conntrack
// saw last. What returns to the regular way is still of this connection: the
// lab's rules drop what is INVALID.
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

// One RST suffices: its receiver gets it, the Conentry goes, and conntrack
// keeps the connection for no longer than any that is closed.
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
// also when the firewall is loaded anew.
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
		time.Sleep(2 * time.Second) // conntrack would forget it meanwhile
		f.Proceed()
		f.WaitExpress()
	}
	for i, c := range conns {
		if now := tracked(c); now.id != ids[i] {
			t.Errorf("%s is another connection to conntrack: %s, it was %s", c.Proto, now.line, ids[i])
		}
	}
	f.WantUnbroken()
	b.WantNoInvalid()
}

// A flow without an answer stays one to conntrack, with the short timeout, and
// one that was answered gets the long one.
func TestUnrepliedFlowKeepsShortTimeout(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	const short = 30 // net.netfilter.nf_conntrack_udp_timeout
	unreplied, replied := b.Outgoing("udp", 1), b.Outgoing("udp", 1)
	numbers := scontest.SendNumbers(t, unreplied.Client, unreplied.Server, 1, time.Millisecond)
	numbers.Proceed(t, 100)
	unreplied.WaitExpressOneWay()
	scontest.Eventually(t, "the answered flow is a stream to conntrack", func() error {
		replied.GoExpress()
		if conn := tracked(replied); !strings.Contains(conn.line, "[ASSURED]") || conn.timeout <= short {
			return fmt.Errorf("it is %s", conn.line)
		}
		return nil
	})
	if conn := tracked(unreplied); !strings.Contains(conn.line, "[UNREPLIED]") || conn.timeout > short {
		t.Errorf("without an answer it is %s", conn.line)
	}
	numbers.WantAll(t, "numbers without an answer")
}

// Two connections that look alike get different ports outside: requests arrive
// from these, and replies where they belong.
func TestRepliesReachWhoAsked(t *testing.T) {
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

// While only requests flow they alone go express. The first reply finds its way
// back to who asked.
func TestReplyToOneWayFlow(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	for name, connect := range scontest.Directions {
		t.Run(name, func(t *testing.T) {
			c := connect(b.In(t), "udp", 1)
			numbers := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
			numbers.Proceed(t, 100)
			c.WaitExpressOneWay()
			numbers.WantAll(t, "requests")
			for range 20 {
				// The client's socket takes nothing but from where it sends to.
				if err := scontest.Pass(c.Server, c.Client, 100); err != nil {
					t.Fatal(err)
				}
			}
			c.GoExpress()
		})
	}
	b.WantNoInvalid()
}

// A connection that has lost its Conentry for having been idle gets another, and
// conntrack takes it for what it was.
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
				t.Errorf("it is another connection to conntrack: %s", now.line)
			}
		})
	}
	b.WantNoInvalid()
}
