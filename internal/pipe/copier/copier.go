// Package copier is the engine of that name, the paper's way: each end maps only rings of
// its own, and between them the broker copies, by a processor or a device (PipeDevice,
// section III). Nothing imports this package but what registers it with the broker.
package copier

import (
	"errors"
	"log/slog"
	"runtime"
	"sync"

	"github.com/scon-project/scon/internal/pipe/engine"
)

// Copier is the engine. It has a worker for each processor at most, which starts when
// there are connections for it.
type Copier struct {
	log    *slog.Logger
	helper string      // program that has a device copy; "": processors copy
	lock   sync.Locker // the broker's, which guards:

	workers []*worker
	regions int // that processes lend
}

// mostHelpers: a worker whose helper copies has little to do itself, and the device
// has memory for few of them.
const mostHelpers = 2

// New returns what pipe.Options.Copier takes. The helper is the path of a program that has
// a device copy, as FindHelper returns it; with "" processors copy.
func New(helper string) func(*slog.Logger, sync.Locker) engine.Carrier {
	return func(log *slog.Logger, lock sync.Locker) engine.Carrier {
		return &Copier{log: log, helper: helper, lock: lock}
	}
}

// Open makes the memory of both ends.
func (c *Copier) Open(ends [2]*engine.End, lost func()) (engine.Carriage, error) {
	w, err := c.takeWorker()
	if err != nil {
		return nil, err
	}
	g, err := c.open(w, ends, lost)
	if err != nil {
		c.lock.Lock()
		w.count--
		c.lock.Unlock()
		return nil, err
	}
	return g, nil
}

// takeWorker chooses the worker that has the fewest connections.
func (c *Copier) takeWorker() (*worker, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	var best *worker
	for _, w := range c.workers {
		if best == nil || w.count < best.count {
			best = w
		}
	}
	most := runtime.NumCPU()
	if c.helper != "" {
		most = min(most, mostHelpers)
	}
	if (best == nil || best.count > 0) && len(c.workers) < most {
		w, err := newWorker(c.log, c.helper)
		if err != nil {
			return nil, err
		}
		c.workers = append(c.workers, w)
		best = w
	}
	best.count++
	return best, nil
}

// Device is the name of the device that copies; "": processors do.
func (c *Copier) Device() string {
	for _, w := range c.workers {
		if d, ok := w.stack.(*device); ok {
			return d.name()
		}
	}
	return ""
}

// Close ends the workers. Their connections are gone.
func (c *Copier) Close() error {
	var err error
	for _, w := range c.workers {
		err = errors.Join(err, w.close())
	}
	return err
}
