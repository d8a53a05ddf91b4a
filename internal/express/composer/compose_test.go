package composer

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/express/rules"
	"github.com/scon-project/scon/test/bed/nstest"
)

// onePort is a machine with one container, where no rule matters.
type onePort struct {
	port  discover.Port
	asked func() // called when conntrack has been asked about a candidate; may be nil
}

func (o *onePort) Port(ifindex int) *discover.Port {
	if ifindex != o.port.Index {
		return nil
	}
	return &o.port
}

func (o *onePort) Inside(*discover.Port) []rules.Device {
	if o.asked != nil {
		o.asked()
	}
	return []rules.Device{{Name: "br0", Index: 2}}
}
func (o *onePort) Outside() []rules.Device                   { return []rules.Device{{Name: "eth0", Index: 4}} }
func (o *onePort) Bridged(*discover.Port) []rules.Device     { return nil }
func (o *onePort) Asks() (q discover.Question)               { return q }
func (o *onePort) Judges() bool                              { return false }
func (o *onePort) Touches(rules.Conn) (r rules.Rule, t bool) { return r, false }
func (o *onePort) Silent(rules.Conn) (r rules.Rule, s rules.Silence) {
	return r, s
}
func (o *onePort) IsSilent() bool            { return false }
func (o *onePort) HasLegacy() bool           { return false }
func (o *onePort) Untracked(rules.Conn) bool { return false }
func (o *onePort) KnowsTracked() bool        { return true }
func (o *onePort) TracksBridges() bool       { return false }
func (o *onePort) HidesEnds() bool           { return false }
func (o *onePort) TimesOut() bool            { return false }

// composing is a Composer over a table in ordinary memory, and connections of TCP that
// conntrack follows in a namespace.
type composing struct {
	*Composer
	ct     *conntrack.Client
	all    []Candidate
	halves [][]datapath.Half
}

// newTable returns a table in ordinary memory, and its slots.
func newTable(t testing.TB, connections int) (*contable.Table, [][]datapath.Half) {
	t.Helper()
	pages := 4*connections/datapath.PageSlots + 1
	m := datapath.Memory{
		Halves: make([][]datapath.Half, pages), Outers: make([][]datapath.Outer, pages),
		Buckets: make([]datapath.Bucket, 1<<14), Settings: &datapath.Settings{Generation: 1, Seed: 1}, Candidates: make([]uint64, 1<<16),
	}
	for i := range m.Halves {
		m.Halves[i] = make([]datapath.Half, datapath.PageSlots)
	}
	table, err := contable.New(m, contable.Options{
		Connections: 2 * connections, PerContainer: 2 * connections, Idle: time.Minute, Lease: time.Second, Grace: new(grace),
		LeasePackets: 65536, Tick: 4 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	return table, m.Halves
}

// grace counts grace periods that are over at once.
type grace struct{ count uint64 }

func (g *grace) Next() uint64 { return g.count + 1 }

func (g *grace) Over() uint64 {
	g.count++
	return g.count
}

func newComposing(t testing.TB, connections int) *composing {
	t.Helper()
	ns := nstest.New(t)
	nstest.Run(t, ns, `
		iptables -A INPUT -p tcp -m conntrack --ctstate INVALID`)
	c := new(composing)
	port := &onePort{port: discover.Port{Index: 3, Name: "veth0", Bridge: discover.Bridge{Index: 2, Name: "br0"}}}
	nstest.Do(t, ns, func() {
		var err error
		if c.ct, err = conntrack.Open(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.ct.Close() })
		listener, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		for range connections {
			conn, err := net.Dial("tcp4", listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			server, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { server.Close() })
			if _, err := conn.Write([]byte{1}); err != nil {
				t.Fatal(err)
			}
			c.all = append(c.all, Candidate{Port: port.port.Index, Tuple: conntrack.Tuple{
				Proto: unix.IPPROTO_TCP,
				Src:   netip.MustParseAddrPort(conn.LocalAddr().String()),
				Dst:   netip.MustParseAddrPort(listener.Addr().String()),
			}})
		}
	})
	var table *contable.Table
	table, c.halves = newTable(t, connections)
	c.Composer = New(Options{
		Table:     table,
		Conntrack: c.ct, Ports: port, Rules: port, Lease: time.Second, LeaseMax: time.Minute,
		Keep: func(int, datapath.Kept) {},
	})
	c.SetLimits(Limits{TCP: time.Hour, UDP: time.Minute, Unassured: time.Minute, Neighbour: time.Hour, Reachable: time.Hour, Table: time.Hour})
	return c
}

// A Conentry has no lease before conntrack has been made liberal: a daemon that is killed
// in between leaves nothing that goes express.
func TestNoLeaseUntilLiberal(t *testing.T) {
	c := newComposing(t, 1)
	k, now := c.all[0], time.Now()
	look := func() (leases int, liberal bool) {
		for i := range c.halves[0] {
			if h := &c.halves[0][i]; h.State == datapath.SlotOpen && h.Lease != 0 {
				leases++
			}
		}
		conn, err := c.ct.Get(k.Tuple)
		if err != nil {
			t.Fatal(err)
		}
		return leases, conn.Liberal()
	}
	c.place(t, k, now)
	if leases, liberal := look(); leases != 0 || liberal {
		t.Errorf("before: %d leases, liberal %v", leases, liberal)
	}
	c.release()
	if leases, liberal := look(); leases != 2 || !liberal {
		t.Errorf("after: %d leases, liberal %v", leases, liberal)
	}
}

// place composes the candidate up to release.
func (c *composing) place(t *testing.T, k Candidate, now time.Time) *contable.Conentry {
	t.Helper()
	answer := c.ct.GetAll([]conntrack.Tuple{k.Tuple})[0]
	if why := c.compose(c.ports.Port(k.Port), k.Tuple, answer, now); why != "" {
		t.Fatal(why.Text())
	}
	return c.table.Lookup(k.Tuple)
}

// A connection that conntrack does not answer for while it is composed has no Conentry
// afterwards, and is refused.
func TestUnansweredWhileComposed(t *testing.T) {
	for want, undo := range map[Refusal]func(*conntrack.Client, conntrack.Conn) error{
		Untracked:      (*conntrack.Client).Delete,
		ConntrackError: func(ct *conntrack.Client, _ conntrack.Conn) error { return ct.Close() },
	} {
		t.Run(string(want), func(t *testing.T) {
			c := newComposing(t, 1)
			conn, err := c.ct.Get(c.all[0].Tuple)
			if err != nil {
				t.Fatal(err)
			}
			c.ports.(*onePort).asked = sync.OnceFunc(func() {
				if err := undo(c.ct, conn); err != nil {
					t.Fatal(err)
				}
			})
			if composed := c.Candidates(c.all, time.Now()); len(composed) != 1 || c.table.Len() != 0 {
				t.Errorf("%d were composed, and have %d Conentries", len(composed), c.table.Len())
			}
			of, _, _ := c.RefusedOf(c.all[0].Port)
			if all := c.Refused(); len(all) != 1 || all[want] != 1 || of[want] != 1 {
				t.Errorf("refused: %v, of the container: %v, want one as %s", all, of, want)
			}
		})
	}
}

// A Conentry that is retired while it is composed leaves conntrack as it is.
func TestRetiredWhileComposed(t *testing.T) {
	c := newComposing(t, 1)
	k, now := c.all[0], time.Now()
	e := c.place(t, k, now)
	c.table.Retire(e)
	if refused := c.release(); len(refused) != 0 {
		t.Errorf("refused: %v", refused)
	}
	if conn, err := c.ct.Get(k.Tuple); err != nil || conn.Liberal() {
		t.Errorf("liberal %v, %v", conn.Liberal(), err)
	}
}

// BenchmarkCompose is the daemon's time for a connection of TCP from the programs' report to
// the end of its Conentry. go test -bench Compose ./internal/express/composer
func BenchmarkCompose(b *testing.B) {
	for _, together := range []int{1, 8, 32} {
		b.Run(fmt.Sprint(together), func(b *testing.B) {
			const connections = 960 // of the burst that a container may have
			c := newComposing(b, connections)
			var before, after unix.Rusage
			_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
			b.ResetTimer()
			now := time.Now()
			for i := 0; i < b.N; i += connections {
				for from := 0; from < connections; from += together {
					if n := len(c.Candidates(c.all[from:from+together], now)); n != together {
						b.Fatalf("%d of %d are composed: %v", n, together, c.Refused())
					}
				}
				c.FlushAll()
				now = now.Add(10 * time.Second)
				c.table.Release()
				c.index.tidy(c.table)
			}
			b.StopTimer()
			_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
			rounds := (b.N + connections - 1) / connections * connections
			used := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
			b.ReportMetric(float64(used.Nanoseconds())/float64(rounds), "cpu-ns/connection")
		})
	}
}
