package express

import (
	"log/slog"
	"sync"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
)

// growAgain is how long a table stays as it is after it could not grow.
const growAgain = 10 * time.Second

// grower gives the table pages, and takes them back. The kernel takes some ten
// milliseconds for each, so that it works outside the loop, one page at a time. It belongs
// to the loop.
type grower struct {
	dp    *datapath.Datapath
	table *contable.Table
	log   *slog.Logger
	limit int // Conentries

	done    chan func() // finishes what was begun, in the loop
	busy    bool
	running sync.WaitGroup
	failed  time.Time // when the table could not grow, if err
	err     error
}

func newGrower(dp *datapath.Datapath, table *contable.Table, limit int, log *slog.Logger) *grower {
	return &grower{dp: dp, table: table, log: log, limit: limit, done: make(chan func(), 1)}
}

// check begins what the table needs, unless something is under way.
func (g *grower) check(now time.Time) {
	if g.busy {
		return
	}
	if g.err == nil || now.Sub(g.failed) >= growAgain {
		if page, wants := g.table.Wants(); wants {
			grow(g, page, g.dp.AddPage, g.table.AddPage)
			return
		}
		if page, wants := g.table.WantsOuters(); wants {
			grow(g, page, g.dp.AddOuters, g.table.AddOuters)
			return
		}
		g.err = nil // the connections that it was too small for have ended
	}
	if page, taken := g.table.TakeSurplus(); taken {
		g.run(func() func() {
			err := g.dp.DropPage(page)
			return func() {
				if err != nil {
					g.log.Error("making the table smaller", "error", err)
				}
			}
		})
	}
}

// grow has a page added.
func grow[T any](g *grower, page int, add func(int) ([]T, error), use func(int, []T)) {
	g.run(func() func() {
		slots, err := add(page)
		return func() {
			if err == nil {
				use(page, slots)
			} else if g.failed = time.Now(); g.err == nil {
				g.log.Warn("the table cannot grow: connections that find no place stay regular", "error", err)
			}
			g.err = err
		}
	})
}

// run runs begin outside the loop. What it returns is for the loop, by done.
func (g *grower) run(begin func() func()) {
	g.busy = true
	g.running.Go(func() { g.done <- begin() })
}

// finish takes what done has.
func (g *grower) finish(end func()) {
	g.busy = false
	end()
	g.check(time.Now())
}

// status says how large the table is, and why it could not grow.
func (g *grower) status() api.Table {
	s := api.Table{Limit: g.limit}
	s.Bytes, s.Room = g.table.Size()
	if g.err != nil {
		s.Why = g.err.Error()
	}
	return s
}

// wait waits until nothing is under way. The loop has ended.
func (g *grower) wait() { g.running.Wait() }
