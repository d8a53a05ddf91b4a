package cli

import (
	"fmt"
	"testing"
	"time"
)

// shown is what a progress shows.
type shown []string

func (s *shown) Step(done, total int, next string) {
	*s = append(*s, fmt.Sprintf("%d of %d: %s", done, total, next))
}
func (s *shown) Done() {}

// Work that goes on is waited for, however long it takes; its progress is shown
// after a while.
func TestPace(t *testing.T) {
	start := time.Now()
	done, total := 0, 4
	var bar shown
	p := &Pace{what: "letting go", done: func() (int, int) { return done, total }, bar: &bar, began: start, moved: start}
	at := func(d time.Duration) bool { return p.Stuck(start.Add(d)) }

	if at(time.Second) || len(bar) != 0 {
		t.Errorf("at once: %q", bar)
	}
	for done < total {
		done++
		if at(time.Duration(done) * (Standstill - time.Second)) {
			t.Errorf("given up at %d", done)
		}
	}
	if len(bar) != 4 || bar[1] != "2 of 4: letting go" {
		t.Errorf("shown: %q", bar)
	}
	if end := 4*(Standstill-time.Second) + Standstill; at(end-time.Second) || !at(end) {
		t.Error("a standstill is not distinguished from progress")
	}
	before := len(bar)
	total = 0
	at(time.Hour)
	if len(bar) != before {
		t.Errorf("shown without a total: %q", bar)
	}
}
