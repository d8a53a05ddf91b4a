package live

import (
	"context"
	"sync"
	"time"
)

// mostPages is how many pages may listen at a time.
const mostPages = 16

// hub takes snapshots while pages listen, one for all of them. A daemon that answers
// slowly is asked less often.
type hub struct {
	ctx      context.Context // ends it
	source   Source
	interval time.Duration

	mu      sync.Mutex
	pages   map[chan look]bool
	running bool
	last    Snapshot // while running; the zero Snapshot until the first one
	latest  *look    // while running; nil until the first one
}

// look is what happened in an interval, or why the daemon did not answer.
type look struct {
	view View
	err  error
}

func newHub(ctx context.Context, s Source, interval time.Duration) *hub {
	return &hub{ctx: ctx, source: s, interval: interval, pages: make(map[chan look]bool)}
}

// listen returns a channel with the latest look, and whether there is room for the page.
// A page that is slow misses looks.
func (h *hub) listen() (looks chan look, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.pages) >= mostPages {
		return nil, false
	}
	looks = make(chan look, 1)
	h.pages[looks] = true
	if h.latest != nil { // a page that wants other rows does not wait for them
		looks <- *h.latest
	}
	if !h.running {
		h.running = true
		go h.run()
	}
	return looks, true
}

func (h *hub) leave(looks chan look) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pages, looks)
}

// run ends an interval after the last page has left, or goes on for one that has come
// since.
func (h *hub) run() {
	tick := time.NewTicker(h.interval)
	defer tick.Stop()
	for h.isWatched() {
		s, err := Take(h.source)
		h.publish(s, err)
		select {
		case <-tick.C:
		case <-h.ctx.Done():
			return
		}
	}
}

// isWatched reports whether a page listens. Otherwise the hub forgets what it knows.
func (h *hub) isWatched() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.pages) == 0 {
		h.running, h.last, h.latest = false, Snapshot{}, nil
	}
	return h.running
}

// publish gives all pages the latest look in place of one that they have not taken.
func (h *hub) publish(s Snapshot, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := look{err: err}
	if err == nil {
		l.view = Between(h.last, s)
		h.last = s
	}
	h.latest = &l
	for looks := range h.pages {
		select {
		case <-looks:
		default:
		}
		looks <- l
	}
}
