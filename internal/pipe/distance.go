package pipe

import (
	"math/bits"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/cores"
)

// preference is which engine to take of those that both sides accept. Sealed is
// asked for by both sides, so it comes before what they accept otherwise.
var preference = map[distance][]Engine{
	near: {Sealed, BPF, Copier, Unix},
	far:  {Unix, Sealed, BPF, Copier},
}

// distance of two processes.
type distance int

const (
	near distance = iota
	far           // so far that a UNIX socket is faster than a ring
)

// mustChoose says whether the distance makes a difference to the choice.
func mustChoose(both engineSet) bool {
	return both.has(Unix) && bits.OnesCount32(uint32(both)) > 1
}

// choose takes an engine that both accept and the machine has. The lock is held.
func (b *Broker) choose(both engineSet, d distance) Engine {
	for _, e := range preference[d] {
		if both.has(e) && b.has(e) {
			return e
		}
	}
	return 0
}

// distances are what was measured of late, by pairs of processors.
type distances struct {
	mu sync.Mutex // guards what follows, and lets one measure at a time
	of map[[2]int]measured
}

type measured struct {
	at time.Time
	d  distance
}

// measureAgain: virtual processors move.
const measureAgain = 10 * time.Second

// usualContest takes some milliseconds. On a busy machine the two processors may
// not meet in time: nobody waits for long.
var usualContest = contest{rounds: 4, pieces: 32, patience: 30 * time.Millisecond}

func (d *distances) init() { d.of = make(map[[2]int]measured) }

// between two processes: of the nearest two processors that they may run on.
// What cannot be found out is near.
func (d *distances) between(a, b int) distance {
	var sets [2]unix.CPUSet
	for i, pid := range []int{a, b} {
		if err := unix.SchedGetaffinity(pid, &sets[i]); err != nil {
			return near
		}
	}
	first, second := cores.Nearest(&sets[0], &sets[1])
	if first == second {
		return near
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	pair := [2]int{min(first, second), max(first, second)}
	if m, ok := d.of[pair]; ok && time.Since(m.at) < measureAgain {
		return m.d
	}
	m := measured{time.Now(), near}
	ring, socket, err := usualContest.hold(pair[0], pair[1])
	switch {
	case err != nil:
		m.d = d.of[pair].d
	case socket < ring:
		m.d = far
	}
	d.of[pair] = m
	return m.d
}
