package copier

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/engine"
)

// Costs of a worker's operations, in bytes that it could copy in that time.
const (
	pollCost     = 64       // a poll without work
	pieceCost    = 1 << 10  // a piece of any length
	doorbellCost = 16 << 10 // a doorbell: a wake-up and two system calls
)

const (
	// quantum is the cost at which a share gives way to the next one.
	quantum = 128 << 10
	// creditPerSecond bounds the cost of an owner's doorbells and pieces beyond the bytes
	// that they move: 20,000 doorbells a second.
	creditPerSecond = 20_000 * doorbellCost
	// mostCredit is what an owner can save: doorbells of 0.1 s.
	mostCredit = creditPerSecond / 10
	// retryAfter is the time in ms after which a worker checks the credit of paused shares.
	retryAfter = 1
)

// share is the work of a worker for one owner. The worker serves the shares round-robin, by
// cost (deficit round-robin), so an owner with many connections gets as much as one with a
// single connection; an owner without work leaves its time to the others.
//
// Doorbells and pieces also use up credit, which the bytes of a piece and time restore. A share
// without credit is paused: its directions are not polled and its doorbells not read.
type share struct {
	ends     int          // ends of connections
	active   []*direction // poll list
	polled   int          // of them, the leading ones, in the current pass
	deficit  int64        // cost that the share may still cause in a pass
	credit   int64        // negative: in debt
	restored time.Time    // last time that credit was restored
	limit    *allowance   // of an owner whose processors are limited, else nil
	listed   bool         // in the worker's list of active shares
	paused   bool         // in the worker's list of paused shares
	muted    []*memory    // ends whose doorbells are not watched
}

// shareOf returns an end's owner's share, for one more end. It removes shares that are not in use
// any more and have all their credit: a new one would be the same.
func (w *worker) shareOf(c *Copier, e *engine.End) *share {
	a, now := e.Owner, w.now()
	for key, s := range w.shares {
		if s.ends == 0 && !s.paused && s.restore(now) == mostCredit && s.limit.restore(now) {
			delete(w.shares, key)
			if s.limit != nil {
				c.allowances.give(key, s.limit)
			}
		}
	}
	s := w.shares[a]
	if s == nil {
		s = &share{credit: mostCredit, restored: now, limit: c.allowances.take(a, e.Limit, now)}
		w.shares[a] = s
	}
	s.ends++
	return s
}

// spend uses up credit; a negative cost restores it.
func (s *share) spend(cost int64) { s.credit = min(mostCredit, s.credit-cost) }

// restore adds the credit for the time since the last call, and returns all of it.
func (s *share) restore(now time.Time) int64 {
	passed := min(now.Sub(s.restored), time.Minute) // no overflow
	s.restored = now
	s.spend(-int64(passed) * (creditPerSecond / 1000) / int64(time.Second/1000))
	return s.credit
}

// isPaused reports whether a share has no credit, and pauses it then.
func (w *worker) isPaused(s *share) bool {
	if s.paused || (s.credit > 0 || s.restore(w.now()) > 0) && (s.limit == nil || s.limit.restore(w.now())) {
		return s.paused
	}
	s.paused = true
	w.paused = append(w.paused, s)
	return true
}

// enlist adds a direction to the poll list of the share that pays for it.
func (w *worker) enlist(y *direction) {
	s := y.payer.share
	s.active = append(s.active, y)
	if !s.listed && !s.paused {
		s.listed = true
		w.active = append(w.active, s)
	}
}

// mute stops watching the doorbell of an end whose share is paused.
func (w *worker) mute(m *memory) {
	_ = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_DEL, m.bell, nil)
	m.share.spend(doorbellCost)
	m.share.limit.spend(doorbellCost)
	m.share.muted = append(m.share.muted, m)
}

// resume resumes the paused shares that have credit again.
func (w *worker) resume() {
	if len(w.paused) == 0 {
		return
	}
	paused := w.paused[:0]
	now := w.now()
	for _, s := range w.paused {
		if s.restore(now) <= 0 || !s.limit.restore(now) {
			paused = append(paused, s)
			continue
		}
		s.paused = false
		if len(s.active) > 0 && !s.listed {
			s.listed = true
			w.active = append(w.active, s)
		}
		w.unmute(s)
	}
	clear(w.paused[len(paused):])
	w.paused = paused
}

// unmute watches the doorbells of a share again.
func (w *worker) unmute(s *share) {
	for _, m := range s.muted {
		if m.bell < 0 {
			continue // closed meanwhile
		}
		if err := w.watch(m.bell, m.number); err != nil {
			w.fail(m.carriage, err)
		}
	}
	s.muted = nil
}

// serve polls the directions of a share, each at most once, until the share has spent its
// quantum. The debt of a pass counts in the next one.
func (w *worker) serve(s *share) {
	s.polled = 0
	if w.isPaused(s) {
		return
	}
	s.deficit = min(s.deficit, 0) + quantum
	defer func() { s.limit.spend(int64(s.polled) * pollCost) }()
	for _, y := range s.active {
		if s.deficit <= 0 {
			return
		}
		s.polled++
		s.deficit -= pollCost
		if y.over || y.carriage.paused {
			continue
		}
		some, err := y.submit(w)
		if err != nil {
			w.fail(y.carriage, err)
		} else if some {
			y.idlePolls = 0
		}
	}
}

// charge charges a piece to the end that determines its length: the receiver if it has less
// room than there are bytes, otherwise the sender. A piece of a lent buffer is the sender's.
func (y *direction) charge(n uint64, byReceiver bool) {
	y.payer = y.from
	if byReceiver {
		y.payer = y.to
	}
	s := y.payer.share
	s.deficit -= int64(n) + pieceCost
	s.spend(pieceCost - int64(n))
	s.limit.spend(int64(n) + pieceCost)
}

// retire removes idle directions from the poll lists. The directions that were polled go to
// the end of their list.
func (w *worker) retire(most int) {
	for _, s := range w.active {
		w.passed = append(w.passed, s.active[:s.polled]...)
		rest := append(s.active[:0], s.active[s.polled:]...)
		clear(s.active[len(rest):])
		s.active = rest
	}
	for _, y := range w.passed {
		if y.keep(most) {
			w.enlist(y)
			continue
		}
		y.scheduled = false
		y.payer.share.spend(int64(y.idlePolls) * pollCost)
	}
	clear(w.passed)
	w.passed = w.passed[:0]
	active := w.active[:0]
	for _, s := range w.active {
		if s.listed = len(s.active) > 0 && !s.paused; s.listed {
			active = append(active, s)
		}
	}
	clear(w.active[len(active):])
	w.active = active
}
