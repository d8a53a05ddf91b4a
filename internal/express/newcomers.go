package express

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

const (
	// lull is how long no port has to have come before the new ones are hooked.
	// At each hook the kernel waits for an RCU grace period under RTNL, which
	// whoever starts a container wants too: fifty that start at once without a
	// pool took twice as long when their ports were hooked at once.
	lull = 200 * time.Millisecond
	// alone is how long one waits that came when no other had for a lull.
	alone = 30 * time.Millisecond
	// longest is how long a port waits for a lull.
	longest = 2 * time.Second
	// rest is how many times as long as hooking took nobody else is hooked
	// without a lull: eight containers started at a time without end came up at
	// two thirds of the rate when all were hooked after the longest time.
	rest = 4
	// hookedAtOnce is how many are hooked before the next look at who has come.
	hookedAtOnce = 8
)

// newcomers are ports that wait to be hooked.
type newcomers struct {
	since map[int]time.Time
	tries map[int]int   // of those that could not be hooked
	last  time.Time     // when the latest came
	pause time.Duration // for which none has to come after it
	rest  time.Time     // until when only a lull gives one its turn
}

func newNewcomers() newcomers {
	return newcomers{since: make(map[int]time.Time), tries: make(map[int]int)}
}

// meet takes the ports that are not hooked, and returns those whose turn it is.
func (n *newcomers) meet(ports []int, now time.Time) (turn []int) {
	there := make(map[int]bool, len(ports))
	for _, index := range ports {
		there[index] = true
		if _, known := n.since[index]; !known {
			n.pause = lull
			if now.Sub(n.last) >= lull {
				n.pause = alone
			}
			n.since[index], n.last = now, now
		}
	}
	gone := func(index int) bool { return !there[index] }
	maps.DeleteFunc(n.since, func(index int, _ time.Time) bool { return gone(index) })
	maps.DeleteFunc(n.tries, func(index int, _ int) bool { return gone(index) })

	isLull := now.Sub(n.last) >= n.pause
	for index, since := range n.since {
		if isLull || now.Sub(since) >= longest && !now.Before(n.rest) {
			turn = append(turn, index)
		}
	}
	slices.SortFunc(turn, func(a, b int) int {
		return cmp.Or(n.tries[a]-n.tries[b], n.since[a].Compare(n.since[b]), cmp.Compare(a, b))
	})
	turn = turn[:min(len(turn), hookedAtOnce)]
	for _, index := range turn {
		n.tries[index]++
	}
	return turn
}

// hooked takes down that ports were hooked from begin to end.
func (n *newcomers) hooked(begin, end time.Time) { n.rest = end.Add(rest * end.Sub(begin)) }

// wait is how long to wait before the next look; false if nobody waits. One that
// could not be hooked is tried again when something else has changed.
func (n *newcomers) wait(now time.Time) (time.Duration, bool) {
	var oldest time.Time
	for index, since := range n.since {
		if n.tries[index] == 0 && (oldest.IsZero() || since.Before(oldest)) {
			oldest = since
		}
	}
	if oldest.IsZero() {
		return 0, false
	}
	forced := max(oldest.Add(longest).Sub(now), n.rest.Sub(now))
	return max(0, min(n.last.Add(n.pause).Sub(now), forced)), true
}
