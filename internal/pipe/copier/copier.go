// Package copier is the engine "copier", the design of the paper PipeDevice (section III):
// each end maps only its own rings, and the broker copies between them with a CPU or a copy
// device. Only the code that registers the engine with the broker imports this package.
package copier

import (
	"errors"
	"log/slog"
	"runtime"
	"sync"

	"github.com/scon-project/scon/internal/pipe/engine"
)

// Copier is the engine. It has at most one worker per CPU. A worker starts with its first
// connection.
type Copier struct {
	log    *slog.Logger
	helper string      // path of the helper that uses a copy device; "": CPUs copy
	lock   sync.Locker // the broker's, which guards:

	workers []*worker
	regions int // buffers that processes have registered with Lend

	allowances allowances
}

// mostHelpers bounds the workers that use a helper: such a worker needs little CPU time,
// and the device has memory for few helpers.
const mostHelpers = 2

// New returns the constructor for pipe.Options.Copier. The helper is the path of a program
// that copies with a device, as FindHelper returns it; with "" CPUs copy.
func New(helper string) func(*slog.Logger, sync.Locker) engine.Carrier {
	return func(log *slog.Logger, lock sync.Locker) engine.Carrier {
		return &Copier{log: log, helper: helper, lock: lock}
	}
}

// Open creates the memory of both ends, and assigns the connection to a worker. It calls
// lost, without the broker's lock, when the worker has reset the connection.
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

// takeWorker returns the worker with the fewest connections, or a new one.
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
		go w.run()
		c.workers = append(c.workers, w)
		best = w
	}
	best.count++
	return best, nil
}

// Device returns the name of the device that copies; "": CPUs copy.
func (c *Copier) Device() string {
	for _, w := range c.workers {
		if d, ok := w.stack.(*device); ok {
			return d.name()
		}
	}
	return ""
}

// Close stops the workers. It requires that all connections have been closed.
func (c *Copier) Close() error {
	var err error
	for _, w := range c.workers {
		err = errors.Join(err, w.close())
	}
	return err
}
