package hooks

import (
	"slices"
	"testing"
	"time"
)

// simulate simulates at most a minute of what the loop does with new ports: hook those of
// the batch, but for those that cannot be, and scan again when it is time. It
// returns when each was hooked, after begin.
func simulate(n *backlog, arrive map[int]time.Duration, broken ...int) map[int]time.Duration {
	begin := time.Now()
	hooked := make(map[int]time.Duration)
	for at := time.Duration(0); at < time.Minute; at += time.Millisecond {
		var there []int
		come := false
		for index, when := range arrive {
			if _, done := hooked[index]; !done && when <= at {
				there = append(there, index)
				come = come || when == at
			}
		}
		wait, waiting := n.wait(begin.Add(at))
		if !come && (!waiting || wait > 0) {
			continue
		}
		for _, index := range n.admit(there, func(int) uint64 { return 0 }, begin.Add(at)) {
			if !slices.Contains(broken, index) {
				hooked[index] = at
			}
		}
	}
	return hooked
}

func TestBacklogWaitForALull(t *testing.T) {
	t.Parallel()
	n := newBacklog()
	arrive := make(map[int]time.Duration)
	for i := range 20 {
		arrive[i] = time.Duration(i) * lull / 10
	}
	hooked := simulate(&n, arrive)
	for i := range arrive {
		if at, ok := hooked[i]; !ok || at < arrive[19]+lull || at > arrive[19]+2*lull {
			t.Errorf("port %d was hooked after %v (%v): want it within a lull of the last arrival at %v", i, at, ok, arrive[19])
		}
	}
}

// One that comes alone does not wait for a lull, two at a time do.
func TestNewcomerAlone(t *testing.T) {
	t.Parallel()
	n := newBacklog()
	hooked := simulate(&n, map[int]time.Duration{1: 0, 2: time.Second, 3: time.Second, 4: 2 * time.Second})
	for i, want := range map[int]time.Duration{1: alone, 2: time.Second + lull, 3: time.Second + lull, 4: 2*time.Second + alone} {
		if at, ok := hooked[i]; !ok || at < want || at > want+alone {
			t.Errorf("port %d was hooked after %v (%v): want about %v", i, at, ok, want)
		}
	}
}

// Where there is never a lull, no port waits longer than maxWait.
func TestBacklogWithoutALull(t *testing.T) {
	t.Parallel()
	n := newBacklog()
	arrive := make(map[int]time.Duration)
	for i := range 300 {
		arrive[i] = time.Duration(i) * lull / 3
	}
	hooked := simulate(&n, arrive)
	for i, came := range arrive {
		if at, ok := hooked[i]; !ok || at-came > maxWait+lull {
			t.Fatalf("port %d came at %v and was hooked at %v (%v)", i, came, at, ok)
		}
	}
}

// Hooking leaves most of the time to those that come without end, and all to
// itself as soon as there is a lull.
func TestBacklogLeaveTime(t *testing.T) {
	t.Parallel()
	n := newBacklog()
	begin := time.Now()
	took := lull / 2
	var there []int
	busy, hooked := time.Duration(0), 0
	for at := time.Duration(0); at < time.Minute; at += took {
		there = append(there, hooked+len(there))
		now := begin.Add(at)
		next := n.admit(there, func(int) uint64 { return 0 }, now)
		if len(next) == 0 {
			continue
		}
		there = slices.DeleteFunc(there, func(i int) bool { return slices.Contains(next, i) })
		hooked += len(next)
		n.hooked(now, now.Add(took))
		busy += took
	}
	if share := busy.Seconds() / 60; share > 1.0/restFactor || share < 0.5/restFactor {
		t.Errorf("hooking took %.2f of the time: want about one in %d", share, 1+restFactor)
	}
	if wait, ok := n.wait(begin.Add(time.Minute)); !ok || wait > lull {
		t.Errorf("the next scan is after %v (%v): want it after a lull", wait, ok)
	}
}

// Ports that cannot be hooked are not retried without end, and delay no other.
func TestBacklogThatCannotBeHooked(t *testing.T) {
	t.Parallel()
	n := newBacklog()
	arrive := map[int]time.Duration{100: 0, 101: time.Second}
	var broken []int
	for i := range 3 * batch {
		arrive[i] = 0
		broken = append(broken, i)
	}
	hooked := simulate(&n, arrive, broken...)
	if len(hooked) != 2 || hooked[101] > time.Second+2*lull {
		t.Errorf("hooked %v: want ports 100 and 101, each after a lull", hooked)
	}
	if wait, ok := n.wait(time.Now()); ok {
		t.Errorf("somebody is still waited for, %v", wait)
	}
	n.admit(nil, nil, time.Now())
	if len(n.since)+len(n.tries) > 0 {
		t.Errorf("ports that are gone are remembered: %+v", n)
	}
}

// Of many that are there at the start, those come first that have packets.
func TestBusiestFirst(t *testing.T) {
	t.Parallel()
	n := newBacklog()
	busy := map[int]uint64{3: 10, 77: 1000, 99: 100}
	var there []int
	for i := range 100 {
		there = append(there, i)
	}
	now := time.Now()
	n.admit(there, func(i int) uint64 { return busy[i] }, now)
	next := n.admit(there, func(i int) uint64 { return busy[i] }, now.Add(lull))
	if want := []int{77, 99, 3, 0, 1, 2, 4, 5}; !slices.Equal(next, want) {
		t.Errorf("got %v, want %v", next, want)
	}
}
