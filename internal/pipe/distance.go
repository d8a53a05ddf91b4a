package pipe

import (
	"math/bits"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/cores"
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

// mustChoose reports whether the distance affects the choice.
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

// distances caches measurements.
type distances struct {
	mu sync.Mutex // guards what follows, and lets one measure at a time
	of map[measurement]measured
}

// measurement is the key: two processors, and whether messages are small.
type measurement struct {
	first, second int
	small         bool
}

type measured struct {
	at time.Time
	d  distance
}

// measureAgain is how long a result holds: virtual processors move.
const measureAgain = 10 * time.Second

// calibrations, for large and for small messages, take some milliseconds each. On a busy
// machine the two processors may not run at the same time: the wait is bounded.
var calibrations = map[bool]calibration{
	false: {rounds: 4, pieces: 32, piece: 64 << 10, patience: 30 * time.Millisecond},
	true:  {rounds: 4, pieces: 512, piece: 1 << 10, patience: 30 * time.Millisecond},
}

func (d *distances) init() { d.of = make(map[measurement]measured) }

// between two processes: of the nearest two processors that they may run on, for
// messages of their size. Without a result it is near.
func (d *distances) between(a, b int, small bool) distance {
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
	what := measurement{min(first, second), max(first, second), small}
	if m, ok := d.of[what]; ok && time.Since(m.at) < measureAgain {
		return m.d
	}
	m := measured{time.Now(), near}
	ring, socket, err := calibrations[small].run(what.first, what.second)
	switch {
	case err != nil:
		m.d = d.of[what].d
	case socket < ring:
		m.d = far
	}
	d.of[what] = m
	return m.d
}
