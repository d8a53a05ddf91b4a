package pipe

import (
	"math/bits"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/cores"
)

// preference orders the engines that both sides accept. Sealed needs the request of both,
// so it precedes those that are accepted by default.
var preference = map[distance][]Engine{
	near: {Sealed, BPF, Copier, Unix},
	far:  {Unix, Sealed, BPF, Copier},
}

// distance between the processors of two processes.
type distance int

const (
	near distance = iota
	far           // a UNIX socket is faster than a ring
)

// mustChoose reports whether the distance affects the choice.
func mustChoose(both engineSet) bool {
	return both.has(Unix) && bits.OnesCount32(uint32(both)) > 1
}

// choose returns the preferred engine that both accept and the machine has, or 0. The lock
// is held.
func (b *Broker) choose(both engineSet, d distance) Engine {
	for _, e := range preference[d] {
		if both.has(e) && b.has(e) {
			return e
		}
	}
	return 0
}

// distances caches measured distances.
type distances struct {
	mu sync.Mutex // guards of; held during a measurement, so that only one runs
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

// measureAgain is the lifetime of a result: virtual processors move.
const measureAgain = 10 * time.Second

// calibrations, by whether messages are small, take some milliseconds each. The time is
// bounded, since on a busy machine the two processors may not run at the same time.
var calibrations = map[bool]calibration{
	false: {rounds: 4, pieces: 32, piece: 64 << 10, patience: 30 * time.Millisecond},
	true:  {rounds: 4, pieces: 512, piece: 1 << 10, patience: 30 * time.Millisecond},
}

func (d *distances) init() { d.of = make(map[measurement]measured) }

// between measures the distance of the two nearest processors that processes a and b may
// run on. Without a result it returns near.
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
	key := measurement{min(first, second), max(first, second), small}
	if m, ok := d.of[key]; ok && time.Since(m.at) < measureAgain {
		return m.d
	}
	m := measured{time.Now(), near}
	ring, socket, err := calibrations[small].run(key.first, key.second)
	switch {
	case err != nil:
		m.d = d.of[key].d
	case socket < ring:
		m.d = far
	}
	d.of[key] = m
	return m.d
}
