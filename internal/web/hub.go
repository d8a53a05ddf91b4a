package web

import (
	"context"
	"sync"
	"time"

	"github.com/scon-project/scon/internal/live"
)

// hub takes snapshots while pages listen, one for all of them. A daemon that answers
// slowly is asked less often.
type hub struct {
	daemon   Daemon
	interval time.Duration

	mu     sync.Mutex
	pages  map[chan look]bool
	last   live.Snapshot // the zero Snapshot until the first one, and after a pause
	ending context.CancelFunc
}

// look is what happened in an interval, or why the daemon did not answer.
type look struct {
	view live.View
	err  error
}

func newHub(d Daemon, interval time.Duration) *hub {
	return &hub{daemon: d, interval: interval, pages: make(map[chan look]bool)}
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
	if len(h.pages) == 1 {
		ctx, cancel := context.WithCancel(context.Background())
		h.ending, h.last = cancel, live.Snapshot{}
		go h.run(ctx)
	}
	return looks, true
}

func (h *hub) leave(looks chan look) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if delete(h.pages, looks); len(h.pages) == 0 {
		h.ending()
	}
}

func (h *hub) run(ctx context.Context) {
	tick := time.NewTicker(h.interval)
	defer tick.Stop()
	for {
		s, err := live.Take(h.daemon)
		h.publish(ctx, s, err)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// publish gives all pages the latest look in place of one that they have not taken.
func (h *hub) publish(ctx context.Context, s live.Snapshot, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return // another run may have begun
	}
	l := look{err: err}
	if err == nil {
		l.view = live.Between(h.last, s)
		h.last = s
	}
	for looks := range h.pages {
		select {
		case <-looks:
		default:
		}
		looks <- l
	}
}
