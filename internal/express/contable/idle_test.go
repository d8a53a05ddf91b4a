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
			// It has been silent for 9 s before.
			if n := b.Sweep(after(71)); n != 0 {
				t.Fatal("retired too early")
			}
			if n := b.Sweep(after(72)); n != 1 || b.Len() != 0 {
				t.Fatalf("retired %d, %d left", n, b.Len())
			}
			b.Sweep(after(73))
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
			b.Release()
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

// silentFor composes a connection that is silent once for so long, then for ever,
// beside n others, and returns how long it was kept in the end.
func (b *bed) silentFor(silence time.Duration, n int) time.Duration {
	b.t.Helper()
	b.compose(7, masqueraded(1), true, start)
	h := b.decided(1, 7)
	for i := range n {
		b.compose(7, masqueraded(2+i), true, start)
		b.decided(2+i, 7)
	}
	last := start
	for now := start; now.Before(start.Add(time.Hour)); now = now.Add(time.Second) {
		if now.Sub(start) == silence {
			h.Packets++
			last = now
		}
		for i := range n { // these are busy
			b.half(masqueraded(2+i).Orig, 7).Packets++
		}
		b.Sweep(now)
		if b.Lookup(masqueraded(1).Orig) == nil {
			return now.Sub(last)
		}
	}
	return time.Hour
}

// A connection is kept for twice its longest silence while there is room.
func TestOwnRhythm(t *testing.T) {
	for _, c := range []struct {
		silence time.Duration
		others  int
		want    time.Duration
	}{
		{3 * time.Second, 0, 10 * time.Second},
		{9 * time.Second, 0, 18 * time.Second},
		{9 * time.Second, 20, 18 * time.Second},
		{9 * time.Second, 32, 10 * time.Second},
	} {
		b := newBed(t, options())
		if got := b.silentFor(c.silence, c.others); got != c.want {
			t.Errorf("silent for %v beside %d others: kept for %v, want %v", c.silence, c.others, got, c.want)
		}
	}
}

// A connection that was a candidate for long may be silent for long.
func TestAgeIsRhythm(t *testing.T) {
	const age = 20 * time.Second
	for name, c := range map[string]struct {
		other uint64 // bits of the signature that are another connection's
		want  time.Duration
	}{"its own": {0, 2 * age}, "another's": {1 << 63, 10 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, options())
			b.compose(7, masqueraded(1), true, start)
			b.enterAll()
			b.Sweep(after(9)) // leaves its signature
			b.Release()
			b.settings.Heartbeat = 1 << 20
			since := uint32(b.settings.Heartbeat) - uint32(age/time.Millisecond)
			first := uint64(since>>datapath.AgeShift(time.Millisecond)) & 0xffff
			for i, word := range b.candidates {
				if word != 0 {
					b.candidates[i] = (word^c.other)>>32<<32 | first<<16 | 4
				}
			}
			kept := b.idleThrough(after(20)).Sub(after(20))
			if kept < c.want || kept > c.want+time.Second {
				t.Errorf("kept for %v, want %v", kept, c.want)
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
	b.Retire(b.Lookup(masqueraded(1).Orig))
	b.Release()
	b.compose(7, masqueraded(1), true, after(2))
	b.enterAll()
	b.Sweep(after(8)) // undecided
	b.Release()
	if retired := b.idleThrough(after(20)); retired != after(30) {
		t.Errorf("retired %v after its start", retired.Sub(after(20)))
	}
}
