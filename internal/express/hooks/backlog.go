package hooks

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

const (
	// lull is how long no new port must have come before the new ones are
	// hooked. At each hook the kernel waits for an RCU grace period under RTNL,
	// which container runtimes need too: fifty containers started at once without
	// a pool took twice as long when their ports were hooked at once.
	lull = 200 * time.Millisecond
	// alone is how long a port waits if none came within a lull before it.
	alone = 30 * time.Millisecond
	// maxWait is how long a port waits for a lull.
	maxWait = 2 * time.Second
	// restFactor is how many times as long as hooking took no other port is
	// hooked without a lull: a runtime that started eight containers at a time
	// without end reached two thirds of its rate when all were hooked after
	// maxWait.
	restFactor = 4
	// batch is how many ports are hooked before the devices are scanned again.
	batch = 8
)

// backlog is the new ports that wait to be hooked, in batches.
type backlog struct {
	since map[int]time.Time
	tries map[int]int   // of those that could not be hooked
	last  time.Time     // when the latest came
	pause time.Duration // without another one that has to follow it
	rest  time.Time     // until when ports are hooked in a lull only
}

func newBacklog() backlog {
	return backlog{since: make(map[int]time.Time), tries: make(map[int]int)}
}

// admit takes all ports that are not hooked, and returns the batch to hook now: of those
// that came at a time, the busiest.
func (b *backlog) admit(ports []int, busy func(index int) uint64, now time.Time) (next []int) {
	there := make(map[int]bool, len(ports))
	for _, index := range ports {
		there[index] = true
		if _, known := b.since[index]; !known {
			b.pause = lull
			if now.Sub(b.last) >= lull {
				b.pause = alone
			}
			b.since[index], b.last = now, now
		}
	}
	gone := func(index int) bool { return !there[index] }
	maps.DeleteFunc(b.since, func(index int, _ time.Time) bool { return gone(index) })
	maps.DeleteFunc(b.tries, func(index int, _ int) bool { return gone(index) })

	isLull := now.Sub(b.last) >= b.pause
	for index, since := range b.since {
		if isLull || now.Sub(since) >= maxWait && !now.Before(b.rest) {
			next = append(next, index)
		}
	}
	slices.SortFunc(next, func(i, j int) int {
		return cmp.Or(b.tries[i]-b.tries[j], b.since[i].Compare(b.since[j]), cmp.Compare(busy(j), busy(i)), cmp.Compare(i, j))
	})
	next = next[:min(len(next), batch)]
	for _, index := range next {
		b.tries[index]++
	}
	return next
}

// hooked notes that ports were hooked from begin to end.
func (b *backlog) hooked(begin, end time.Time) { b.rest = end.Add(restFactor * end.Sub(begin)) }

// wait returns how long to wait before the next scan, false if no port waits. A
// port that could not be hooked is tried again when something else has changed.
func (b *backlog) wait(now time.Time) (time.Duration, bool) {
	var oldest time.Time
	for index, since := range b.since {
		if b.tries[index] == 0 && (oldest.IsZero() || since.Before(oldest)) {
			oldest = since
		}
	}
	if oldest.IsZero() {
		return 0, false
	}
	forced := max(oldest.Add(maxWait).Sub(now), b.rest.Sub(now))
	return max(0, min(b.last.Add(b.pause).Sub(now), forced)), true
}
