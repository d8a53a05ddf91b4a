// Package pool keeps wired network namespaces ready (startup.txt, section 5.1),
// so that a container takes one instead of waiting for devices to be made.
//
//	     Give ──▶ displaced ─┐
//	                         ▼
//	quiet moment ──▶ refill: Make ──▶ ready ──▶ Take ──▶ container
//	                                    │
//	                 too many ──▶ Drop ◀┘
//
// How many are ready follows the demand: the most that were taken within a
// moment lately, but no fewer than the warm target.
package pool

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/scon-project/scon/internal/config"
)

// ErrClosed is what Fill ends with when the pool is closed meanwhile.
var ErrClosed = errors.New("the pool is closed")

// Namespace is one that is wired; what it is, Options.Make knows.
type Namespace any

// Options say what a pool is of.
type Options struct {
	Config config.Pool
	// Make makes a namespace, out of an empty one if it is given one. It closes
	// that.
	Make func(empty *os.File) (Namespace, error)
	// Drop takes one away.
	Drop   func(Namespace) error
	Logger *slog.Logger
}

const (
	// window is how long arrivals count as one burst: about what it takes to
	// start some dozens of containers, before the refill is of use.
	window = time.Second
	// quiet is how long nobody has to come before the refill begins, which
	// would contend with those that do for RTNL.
	quiet = 50 * time.Millisecond
	// patience is how long after the last one it begins at the latest. Until
	// then it also waits for the CPUs: who has a network is not up yet, and a
	// namespace costs as much of them as a container's start would get.
	patience = 5 * time.Second
	// retry is the pause after something went wrong.
	retry = time.Second
	// displacedMost is how many empty namespaces wait to be used.
	displacedMost = 256
)

// Pool is safe for concurrent use.
type Pool struct {
	opts Options

	pressure pressure // of the refill alone

	mu        sync.Mutex
	ready     []Namespace
	displaced []*os.File
	demand    demand
	floor     int // of Fill
	making    bool
	closed    bool
	stats     Stats
	wake      chan struct{}
	changed   *sync.Cond // ready, or an attempt to make one has ended
	failure   error      // of the last attempt

	stop context.CancelFunc
	done chan struct{}
}

// Stats are what a pool has counted.
type Stats struct {
	Ready, Target, Displaced      int
	Taken, Missed, Made, Recycled uint64
	Failure                       string // of the last attempt to make one
}

// New starts a pool. It begins to fill at once.
func New(o Options) *Pool {
	ctx, stop := context.WithCancel(context.Background())
	p := &Pool{
		opts: o, pressure: pressure{read: cpuPressure},
		wake: make(chan struct{}, 1), stop: stop, done: make(chan struct{}),
	}
	p.changed = sync.NewCond(&p.mu)
	p.demand.cooldown = o.Config.Cooldown
	go p.refill(ctx)
	return p
}

// Take is the next namespace; false if there is none.
func (p *Pool) Take() (Namespace, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.demand.arrive(time.Now())
	p.nudge()
	n, ok := p.pop()
	if !ok {
		p.stats.Missed++
		return nil, false
	}
	p.stats.Taken++
	return n, true
}

// Shed takes a namespace away before its time, for what it has leased, if need
// be the one that is just being made. False if there is none.
func (p *Pool) Shed() bool {
	p.mu.Lock()
	for len(p.ready) == 0 && p.making {
		p.changed.Wait()
	}
	n, ok := p.pop()
	p.mu.Unlock()
	if ok {
		p.drop(n)
	}
	return ok
}

// Give brings an empty namespace to make one of, and its file.
func (p *Pool) Give(empty *os.File) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.displaced) >= displacedMost || p.opts.Config.WarmTarget == 0 {
		empty.Close()
		return
	}
	p.displaced = append(p.displaced, empty)
	p.nudge()
}

// Fill waits until at least n are ready, or the pool cannot hold them. They
// stay until they are taken or the cooldown is over.
func (p *Pool) Fill(ctx context.Context, n int) error {
	defer context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.changed.Broadcast()
	})()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.demand.expect(time.Now(), n)
	p.floor = n
	defer func() { p.floor = 0 }()
	p.failure = nil
	p.nudge()
	for len(p.ready) < min(n, p.limit()) {
		if p.failure != nil {
			return p.failure
		}
		if p.closed {
			return ErrClosed
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		p.changed.Wait()
	}
	return nil
}

// Stats counts.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Ready, s.Target, s.Displaced = len(p.ready), p.target(time.Now()), len(p.displaced)
	if p.failure != nil {
		s.Failure = p.failure.Error()
	}
	return s
}

// Close takes away what was not taken.
func (p *Pool) Close() error {
	p.stop()
	<-p.done
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.changed.Broadcast()
	var errs []error
	for _, n := range p.ready {
		errs = append(errs, p.opts.Drop(n))
	}
	for _, f := range p.displaced {
		f.Close()
	}
	p.ready, p.displaced = nil, nil
	return errors.Join(errs...)
}

// limit is the most that may be ready.
func (p *Pool) limit() int {
	return min(p.opts.Config.Maximum, int(p.opts.Config.MemoryLimit/config.NamespaceMemory))
}

// target is how many should be ready.
func (p *Pool) target(now time.Time) int {
	if p.opts.Config.WarmTarget == 0 {
		return 0
	}
	return min(max(p.opts.Config.WarmTarget, p.demand.expected(now)), p.limit())
}

// pop takes the oldest: its neighbours have learned of it, and its hooks are
// in place.
func (p *Pool) pop() (Namespace, bool) {
	if len(p.ready) == 0 {
		return nil, false
	}
	n := p.ready[0]
	p.ready = p.ready[1:]
	return n, true
}

func (p *Pool) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *Pool) drop(n Namespace) {
	if err := p.opts.Drop(n); err != nil {
		p.opts.Logger.Error("taking away a pooled namespace", "error", err)
	}
}

// refill brings the pool to its target until ctx ends.
func (p *Pool) refill(ctx context.Context) {
	defer close(p.done)
	for {
		wait := p.one()
		if wait == 0 && ctx.Err() == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(wait, quiet)):
		case <-p.wake:
			if wait == retry { // what failed fails again
				select {
				case <-ctx.Done():
				case <-time.After(retry / 10):
				}
			}
		}
	}
}

// disturbs tells whether containers are on their way that the refill would
// contend with. If few are ready, it is worth it in a stream of containers that
// leaves time to the CPUs; in one that does not, it costs others what it saves.
func (p *Pool) disturbs(now time.Time, few bool) bool {
	since := p.demand.since(now)
	if few {
		return since < quiet && p.pressure.isHigh(now)
	}
	return since < quiet || since < patience && p.pressure.isHigh(now)
}

// one makes or drops one namespace, and says how long to wait for the next; 0
// is not at all.
func (p *Pool) one() (wait time.Duration) {
	p.mu.Lock()
	now := time.Now()
	target := p.target(now)
	switch n := len(p.ready); {
	case n > max(target, p.floor):
		last, _ := p.pop()
		p.mu.Unlock()
		p.drop(last)
		return 0
	case n >= max(target, min(p.floor, p.limit())):
		p.mu.Unlock()
		return time.Second // the target falls by itself
	case p.floor == 0 && p.disturbs(now, n < p.opts.Config.Minimum):
		p.mu.Unlock()
		return quiet
	}
	var empty *os.File
	if len(p.displaced) > 0 {
		empty, p.displaced = p.displaced[0], p.displaced[1:]
	}
	p.making = true
	p.mu.Unlock()

	made, err := p.opts.Make(empty)

	p.mu.Lock()
	p.making = false
	defer p.mu.Unlock()
	defer p.changed.Broadcast()
	if p.failure = err; err != nil {
		p.opts.Logger.Debug("making a pooled namespace", "error", err)
		return retry
	}
	p.stats.Made++
	if empty != nil {
		p.stats.Recycled++
	}
	p.ready = append(p.ready, made)
	return 0
}
