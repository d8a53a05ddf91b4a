package startup

import (
	"maps"
	"sync"
)

// tally counts the containers that got a network since the agent began.
type tally struct {
	mu      sync.Mutex
	handed  uint64            // with a pooled namespace
	inPlace map[string]uint64 // without one, by reason
}

func newTally() *tally { return &tally{inPlace: make(map[string]uint64)} }

func (t *tally) countHanded() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.handed++
}

func (t *tally) countInPlace(why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inPlace[why]++
}

func (t *tally) counts() (handed uint64, inPlace map[string]uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.handed, maps.Clone(t.inPlace)
}
