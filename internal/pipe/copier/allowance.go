package copier

import (
	"sync"
	"time"

	"github.com/scon-project/scon/internal/pipe/quota"
)

// costOfProcessor is the cost, in the units of share.go, that a worker's thread handles at least
// in a second of its processor: bytes of memory that no cache has. BenchmarkColdCopy measures it: 7.6
// to 9.3 GB/s on an AMD EPYC with Linux 6.18, busy with other work. This is less, for slower machines.
const costOfProcessor = 5e9

// allowance bounds all work of the broker for an owner whose processors are limited, by all
// workers together: the owner could otherwise have the broker do what it may not do itself. Bytes
// of a lent buffer cost the owner nothing, nor do bytes of a ring that it has not written.
type allowance struct {
	uses int // shares; guarded by the lock of allowances

	mu       sync.Mutex // guards:
	rate     float64    // cost per second
	left     float64    // negative: in debt
	restored time.Time
}

// allowances are those of all owners with a limit.
type allowances struct {
	mu sync.Mutex // guards of
	of map[quota.Account]*allowance
}

// take returns the allowance of an owner with a limit of processors; nil: there is no limit.
func (s *allowances) take(a quota.Account, processors float64, now time.Time) *allowance {
	if processors <= 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = make(map[quota.Account]*allowance)
	}
	l := s.of[a]
	if l == nil {
		l = &allowance{left: quantum, restored: now}
		s.of[a] = l
	}
	l.uses++
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rate = processors * costOfProcessor
	return l
}

// give ends a share's use of its owner's allowance. It must not be in debt.
func (s *allowances) give(a quota.Account, l *allowance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.uses--; l.uses == 0 {
		delete(s.of, a)
	}
}

// spend uses some up.
func (l *allowance) spend(cost int64) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left -= float64(cost)
}

// restore adds what time has restored, at most a tenth of a second's or a quantum, and reports
// whether any is left.
func (l *allowance) restore(now time.Time) bool {
	if l == nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if passed := now.Sub(l.restored); passed > 0 {
		l.restored = now
		l.left = min(l.left+passed.Seconds()*l.rate, max(l.rate/10, quantum))
	}
	return l.left > 0
}
