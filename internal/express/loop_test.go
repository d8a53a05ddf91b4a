package express

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/composer"
	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/hooks"
	"github.com/scon-project/scon/internal/express/rules"
	"github.com/scon-project/scon/internal/host/changes"
	"github.com/scon-project/scon/internal/service"
)

// idle is a daemon with nothing to do.
func idle(t *testing.T) *Daemon {
	t.Helper()
	h, err := hooks.New(hooks.Options{Datapath: new(datapath.Datapath)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return &Daemon{dp: new(datapath.Datapath), hooks: h, tcp: composer.NewTCP(nil, nil, nil), early: composer.NewEarly(nil, nil, nil), pulse: service.NewPulse(), sweeper: newSweeper(), grower: newGrower(nil, nil, 0, nil)}
}

func newTable(t *testing.T, m datapath.Memory, o contable.Options) *contable.Table {
	t.Helper()
	table, err := contable.New(m, o)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// A sweep of the largest table goes on in pieces, in order, and a new one begins only
// after the last piece.
func TestSweeper(t *testing.T) {
	const places = 1 << 21
	s, most, sweeps := newSweeper(), uint32(0), 0
	var next uint32
	for range 3 * places / pieceLength {
		s.start() // as often as the ticker likes
		<-s.due
		s.start() // by events that are taken ahead of the piece
		s.piece(func(from uint32) uint32 {
			if from != next {
				t.Fatalf("a piece from place %d on, want %d", from, next)
			}
			most = max(most, min(pieceLength, places-from))
			if next = from + pieceLength; next >= places {
				next = 0
				sweeps++
			}
			return next
		})
	}
	if sweeps != 3 || most > pieceLength || len(s.due) > 0 {
		t.Errorf("%d sweeps, %d places at once", sweeps, most)
	}
}

// The loop ends with an error when any of its sources ends.
func TestSourceEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*sources){
		"changes": func(s *sources) {
			c := make(chan changes.Event)
			close(c)
			s.changes = c
		},
		"destroyed": func(s *sources) {
			c := make(chan conntrack.Destroyed)
			close(c)
			s.destroyed = c
		},
		"events": func(s *sources) {
			c := make(chan []datapath.Event)
			close(c)
			s.events = c
		},
	} {
		t.Run(name, func(t *testing.T) {
			var s sources
			end(&s)
			d := idle(t)
			d.ctx = t.Context()
			if err := d.loop(s); err == nil {
				t.Error("no error")
			}
			var stop func()
			d.ctx, stop = context.WithCancel(t.Context())
			stop()
			if err := d.loop(s); err != nil {
				t.Errorf("at the daemon's own end: %v", err)
			}
		})
	}
}

// Before a piece of a sweep, events that are queued are taken, and no more than so many.
func TestEventsAhead(t *testing.T) {
	t.Parallel()
	d := idle(t)
	d.table = newTable(t, datapath.Memory{Halves: make([][]datapath.Half, 1), Outers: make([][]datapath.Outer, 1)}, contable.Options{})
	for _, queued := range []int{0, 1, ahead, ahead + 5} {
		events := make(chan []datapath.Event, queued)
		for range queued {
			events <- []datapath.Event{{Progress: true}} // of a connection that is gone
		}
		d.sources.events = events
		if err := d.eventsAhead(); err != nil || len(events) != max(queued-ahead, 0) {
			t.Errorf("%d of %d events are left: %v", len(events), queued, err)
		}
	}
}

// While the devices are read or hooked, clients are answered.
func TestGoOn(t *testing.T) {
	d := idle(t)
	d.ctx, d.calls, d.sources.changes = t.Context(), make(chan func()), make(chan changes.Event)
	d.goOn(func() {
		answered := make(chan struct{})
		d.calls <- func() { close(answered) }
		<-answered
	})
}

// Rules are not taken in before the devices are known that they may be about.
func TestRulesWaitForDevices(t *testing.T) {
	d := idle(t)
	d.heartbeat = newHeartbeat(nil, nil, nil)
	d.heartbeat.networkNoted(1)
	d.heartbeat.networkChanged(2)
	if err := d.readRules(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, unread := d.heartbeat.unread(); !unread {
		t.Error("they were read before a change of devices was noted")
	}
}

// beats are those of programs that do not exist.
type beats struct {
	settings   datapath.Settings
	n          int
	generation uint32 // at the last one
}

func (b *beats) Settings() *datapath.Settings { return &b.settings }
func (b *beats) Tick() time.Duration          { return time.Millisecond }

func (b *beats) Beat() error {
	b.n++
	b.generation = b.settings.Generation
	return nil
}

// counted gives a daemon a heartbeat that is counted.
func counted(d *Daemon) *beats {
	b := new(beats)
	d.heartbeat = newHeartbeat(b, slog.New(slog.DiscardHandler), d.sees)
	change, _ := d.heartbeat.unread()
	d.heartbeat.rulesRead(change)
	return b
}

// Once nobody hears of changes, there is no heartbeat while the loop ends, which waits for the
// devices that are read or hooked: neither when the kernel reports no more of them nor when
// the daemon ends.
func TestNoBeatAtTheEnd(t *testing.T) {
	for name, end := range map[string]func(stop func(), changes chan changes.Event){
		"changes": func(_ func(), changes chan changes.Event) { close(changes) },
		"daemon":  func(stop func(), _ chan changes.Event) { stop() },
	} {
		t.Run(name, func(t *testing.T) {
			d := idle(t)
			d.table = new(contable.Table)
			b := counted(d)
			var stop func()
			d.ctx, stop = context.WithCancel(t.Context())
			source := make(chan changes.Event)
			d.sources.changes = source
			if err := d.heartbeat.beat(); err != nil || b.n != 1 {
				t.Fatalf("%d heartbeats before: %v", b.n, err)
			}
			before := b.settings.Heartbeat
			end(stop, source)
			d.goOn(func() { time.Sleep(2 * beatInterval) })
			if err := d.heartbeat.beat(); err != nil || b.n != 1 || b.settings.Heartbeat == before {
				t.Errorf("%d heartbeats, the last one taken back: %v; %v", b.n, b.settings.Heartbeat != before, err)
			}
		})
	}
}

// A process that stood still, as one that was stopped, reads the rules and the devices again
// before its heartbeat, and has every decision confirmed: it may not have read yet what has
// changed meanwhile. A loop that was busy has every decision confirmed.
func TestBeatAfterStandstill(t *testing.T) {
	const late, long = inertAfter - beatInterval, inertAfter + 1
	for name, c := range map[string]struct {
		ticked, called time.Duration // ago
		stale, missed  bool
	}{
		"late":    {late, late, false, false},
		"busy":    {late, long, true, false},
		"stopped": {long, long, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			d := idle(t)
			d.table, d.policy.live = new(contable.Table), rules.NewLive(rules.Options{})
			b := counted(d)
			beat := func(want int) {
				t.Helper()
				if err := d.heartbeat.beat(); err != nil || b.n != want {
					t.Errorf("%d heartbeats, want %d: %v", b.n, want, err)
				}
			}
			now := time.Now()
			d.heartbeat.tick(now)
			beat(1)
			d.heartbeat.ticked, d.heartbeat.called = now.Add(-c.ticked), now.Add(-c.called)
			n := 2
			if c.missed {
				n = 1
			}
			beat(n)
			d.heartbeat.tick(now) // its goroutine may run before the loop
			d.resume(now)
			if _, unread := d.heartbeat.unread(); unread != c.missed || d.hooks.Unsettled() != c.missed || (b.settings.Generation != 0) != c.stale {
				t.Errorf("rules are to be read: %v, devices: %v; generation %d", unread, d.hooks.Unsettled(), b.settings.Generation)
			}
			change, _ := d.heartbeat.unread()
			d.heartbeat.rulesRead(change)
			if d.heartbeat.resume(now) {
				t.Error("it stood still twice")
			}
		})
	}
}

// However often the programs are made inert, they are until the next heartbeat, and its age
// stays what leases are read by.
func TestInertStays(t *testing.T) {
	const now, second = 100000, 1000 // jiffies
	d := idle(t)
	b := counted(d)
	b.settings.Heartbeat = now
	for _, again := range []func(){d.heartbeat.rulesChanged, d.heartbeat.makeInert, d.heartbeat.end, func() { _ = d.heartbeat.setPaused(true) }} {
		for range 1 << 20 {
			again()
			if age := now - b.settings.Heartbeat; age < second || age > 10*second {
				t.Fatalf("the heartbeat is %d jiffies old", age)
			}
		}
	}
}

// While programs of others at devices cannot be looked at, packets that have a decision go
// express for some seconds only.
func TestBlind(t *testing.T) {
	d := idle(t)
	d.table = newTable(t, datapath.Memory{
		Halves: [][]datapath.Half{make([]datapath.Half, datapath.PageSlots)}, Outers: make([][]datapath.Outer, 1),
		Buckets: make([]datapath.Bucket, 16), Settings: &datapath.Settings{Generation: 1}, Candidates: make([]uint64, 16),
	}, contable.Options{Connections: 16, PerContainer: 16, Grace: new(datapath.Grace), Lease: time.Second, Tick: time.Millisecond})
	now := time.Now()
	d.seen = now
	if !d.sees(now.Add(time.Hour)) {
		t.Error("no heartbeat though there is no decision")
	}
	server := netip.MustParseAddrPort("203.0.113.9:443")
	orig := conntrack.Tuple{Proto: unix.IPPROTO_UDP, Src: netip.MustParseAddrPort("172.17.0.2:30000"), Dst: server}
	reply := conntrack.Tuple{Proto: unix.IPPROTO_UDP, Src: server, Dst: netip.MustParseAddrPort("192.0.2.1:30000")}
	if _, err := d.table.Compose(contable.End{Port: 9, Bridge: 5}, orig, conntrack.Conn{Orig: orig, Reply: reply}, now); err != nil {
		t.Fatal(err)
	}
	if !d.sees(now.Add(longestBlind)) {
		t.Errorf("no heartbeat %v after the last look", longestBlind)
	}
	if d.sees(now.Add(longestBlind + 1)) {
		t.Errorf("a heartbeat more than %v after the last look", longestBlind)
	}
}
