package express

import (
	"context"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/composer"
	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/hooks"
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
	return &Daemon{hooks: h, tcp: composer.NewTCP(nil, nil, nil), pulse: service.NewPulse(), sweeper: newSweeper(), grower: newGrower(nil, nil, 0, nil)}
}

// A sweep of the largest table goes on in pieces, in order, and a new one begins only
// after the last piece.
func TestSweeper(t *testing.T) {
	const slots = 1 << 22
	s, most, sweeps := newSweeper(), uint32(0), 0
	var next uint32
	for range 3 * slots / pieceSlots {
		s.start() // as often as the ticker likes
		<-s.due
		s.piece(func(from uint32) uint32 {
			if from != next {
				t.Fatalf("a piece from slot %d on, want %d", from, next)
			}
			most = max(most, min(pieceSlots, slots-from))
			if next = from + pieceSlots; next >= slots {
				next = 0
				sweeps++
			}
			return next
		})
	}
	if sweeps != 3 || most > pieceSlots || len(s.due) > 0 {
		t.Errorf("%d sweeps, %d slots at once", sweeps, most)
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
			c := make(chan datapath.Event)
			close(c)
			s.events = c
		},
	} {
		t.Run(name, func(t *testing.T) {
			var s sources
			end(&s)
			if err := idle(t).loop(t.Context(), s); err == nil {
				t.Error("no error")
			}
			ctx, stop := context.WithCancel(t.Context())
			stop()
			if err := idle(t).loop(ctx, s); err != nil {
				t.Errorf("at the daemon's own end: %v", err)
			}
		})
	}
}

// Before a piece of a sweep, events that are queued are taken, and no more than so many.
func TestEventsAhead(t *testing.T) {
	t.Parallel()
	d := idle(t)
	d.table = contable.New(datapath.Memory{Halves: make([][]datapath.Half, 1), Outers: make([][]datapath.Outer, 1)}, contable.Options{})
	for _, queued := range []int{0, 1, eventsAtOnce, ahead*eventsAtOnce + 5} {
		events := make(chan datapath.Event, queued)
		for range queued {
			events <- datapath.Event{Progress: true} // of a connection that is gone
		}
		if err := d.eventsAhead(events); err != nil || len(events) != max(queued-ahead*eventsAtOnce, 0) {
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
	d.topology.Store(2)
	d.noted = 1
	if err := d.readRules(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, unread := d.heartbeat.unread(); !unread {
		t.Error("they were read before a change of devices was noted")
	}
}
