package pipe

import (
	"testing"
	"time"

	"github.com/scon-project/scon/internal/host/changes"
)

// A container that takes others' addresses without end has their connections proved again once
// in proofAge; rules that change meanwhile do so at once.
func TestMovesAreSpaced(t *testing.T) {
	var m moves
	begin := time.Now()
	for i, c := range []struct {
		at, wait time.Duration
		due      bool
	}{
		{0, 0, true}, {1, proofAge - 1, true}, {2, 0, false}, {proofAge - 1, 0, false},
		{proofAge, proofAge, true}, {2*proofAge - 1, 0, false}, {3*proofAge + 1, 0, true},
	} {
		if wait, due := m.next(begin.Add(c.at)); wait != c.wait || due != c.due {
			t.Errorf("move %d: %v, %v; want %v, %v", i, wait, due, c.wait, c.due)
		}
	}

	b := &Broker{changed: make(chan time.Time, 1)}
	b.moves.last = time.Now()
	for range 3 {
		for _, kind := range []changes.Kind{changes.FDB, changes.Neighbour} {
			b.networkChanged(changes.Event{Kind: kind})
		}
	}
	if len(b.changed) != 0 {
		t.Error("moves have connections proved again at once")
	}
	for _, kind := range []changes.Kind{changes.Ruleset, changes.Link, changes.Route, changes.Overrun} {
		b.networkChanged(changes.Event{Kind: kind})
		select {
		case <-b.changed:
		default:
			t.Errorf("a change of kind %v does not", kind)
		}
	}
}
