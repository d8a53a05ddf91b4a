package contable_test

import (
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/datapath"
)

// after is the time so many seconds after the start.
func after(seconds float64) time.Time {
	return start.Add(time.Duration(seconds * float64(time.Second)))
}

// decided shows a decision about a connection's packets out of the container.
func (b *bed) decided(i, port int) *datapath.Half {
	b.t.Helper()
	h := b.half(masqueraded(i).Orig, port)
	if h == nil {
		b.t.Fatal("no such half")
	}
	h.OutDev = 3
	return h
}

// A Conentry goes when no packet of it was seen for the idle time, and whatever
// a packet changes in it keeps it.
func TestIdle(t *testing.T) {
	for name, packet := range map[string]func(out, in *datapath.Half){
		"express out":   func(out, _ *datapath.Half) { out.Packets++ },
		"express in":    func(_, in *datapath.Half) { in.Packets++ },
		"lease renewed": func(out, _ *datapath.Half) { out.LeaseFrom += 100 },
		"entered":       func(_, in *datapath.Half) { in.Probe ^= 0x1234 },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, options())
			b.compose(7, masqueraded(1), true, start)
			out, in := b.decided(1, 7), b.half(masqueraded(1).Reply, 0)
			packet(out, in)
			for second := 9.0; second < 50; second += 9 {
				if n := b.Sweep(after(second)); n != 0 {
					t.Fatalf("retired after %v s", second)
				}
				packet(out, in)
			}
			if n := b.Sweep(after(54)); n != 0 {
				t.Fatal("retired with a packet since the last sweep")
			}
			if n := b.Sweep(after(63)); n != 0 {
				t.Fatal("retired too early")
			}
			if n := b.Sweep(after(64)); n != 1 || b.Len() != 0 {
				t.Fatalf("retired %d, %d left", n, b.Len())
			}
			b.Sweep(after(65))
			if b.inUse() != 0 {
				t.Errorf("%d slots in use a second later", b.inUse())
			}
		})
	}
}

// A connection that no decision is ever seen for does not keep its place, busy
// as it may be.
func TestUndecided(t *testing.T) {
	b := newBed(t, options())
	b.compose(7, masqueraded(1), true, start)
	b.compose(7, masqueraded(2), true, start)
	waiting, decided := b.half(masqueraded(1).Orig, 7), b.decided(2, 7)
	for second := range 8 {
		waiting.Probe++
		decided.Packets++
		b.Sweep(after(float64(second)))
		if e := b.Lookup(masqueraded(1).Orig); (e == nil) != (second >= 5) {
			t.Fatalf("after %d s the undecided one is %v", second, e)
		}
	}
	if b.Lookup(masqueraded(2).Orig) == nil {
		t.Error("the decided one is gone")
	}
}

// idleThrough composes a connection, which had its last packet then, and
// returns when the sweeps retired it.
func (b *bed) idleThrough(from time.Time) time.Time {
	b.t.Helper()
	b.compose(7, masqueraded(1), true, from)
	b.decided(1, 7)
	for now := from; now.Before(from.Add(time.Hour)); now = now.Add(time.Second) {
		if b.Sweep(now) == 1 {
			b.Release(now.Add(time.Second))
			return now
		}
	}
	b.t.Fatal("never retired")
	return time.Time{}
}

// A connection that comes back after it was retired has shown its rhythm, and
// is kept for twice as long.
func TestRhythm(t *testing.T) {
	for _, c := range []struct {
		name         string
		back         time.Duration // after its last packet
		wantIdleTime time.Duration
	}{
		{"at once", 11 * time.Second, 22 * time.Second},
		{"a sensor's 30 s", 30 * time.Second, time.Minute},
		{"bounded", 9 * time.Minute, 10 * time.Minute},
		{"forgotten", 11 * time.Minute, 10 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t, options())
			retired := b.idleThrough(start)
			if retired != after(10) {
				t.Fatalf("retired after %v at first", retired.Sub(start))
			}
			back := start.Add(c.back)
			b.Sweep(back.Add(-time.Second))
			if again := b.idleThrough(back); again.Sub(back) != c.wantIdleTime {
				t.Errorf("retired after %v, want %v", again.Sub(back), c.wantIdleTime)
			}
		})
	}
}

// A connection whose packets enter and never leave is retired, and no candidate
// again for a long time; one that is silent waits as long as any other.
func TestNeverLeaves(t *testing.T) {
	b := newBed(t, options())
	b.compose(7, masqueraded(1), true, start)
	if n := b.Sweep(after(8)); n != 0 {
		t.Errorf("%d retired in silence", n)
	}
	b.enterAll()
	if n := b.Sweep(after(9)); n != 1 {
		t.Errorf("%d retired whose packets do not leave", n)
	}
	for _, count := range b.candidates {
		if count&0xffff > 1<<15 {
			return
		}
	}
	t.Errorf("counts %x: it may be back at once", b.candidates)
}

// enterAll notes a packet at every half that is open.
func (b *bed) enterAll() {
	for i := range b.halves {
		if h := &b.halves[i]; h.State == datapath.SlotOpen {
			h.Probe = 1
		}
	}
}

// Being retired for anything but idleness shows no rhythm.
func TestNoRhythm(t *testing.T) {
	b := newBed(t, options())
	b.compose(7, masqueraded(1), true, start)
	b.Retire(b.Lookup(masqueraded(1).Orig), start)
	b.Release(after(1))
	b.compose(7, masqueraded(1), true, after(2))
	b.enterAll()
	b.Sweep(after(8)) // undecided
	b.Release(after(9))
	if retired := b.idleThrough(after(20)); retired != after(30) {
		t.Errorf("retired %v after its start", retired.Sub(after(20)))
	}
}
