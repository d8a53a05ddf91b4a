// Package pool keeps prepared network namespaces (Understanding Network Startup for
// Secure Containers, section 5.1), so that containers do not wait for their devices.
//
//	quiet moment ──▶ refill: Make ──▶ ready ──▶ Take ──▶ container
//	                                    │
//	                 too many ──▶ Drop ◀┘
//
// The number of ready namespaces follows the demand: the largest recent burst, but at
// least the warm target.
package pool

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/scon-project/scon/internal/config"
)

// ErrClosed is returned by Fill when the pool is closed meanwhile.
var ErrClosed = errors.New("the pool is closed")

// Namespace is a prepared namespace, as Options.Make returns it.
type Namespace any

// Options configure a pool.
type Options struct {
	Config config.Pool
	// Make prepares a namespace.
	Make func() (Namespace, error)
	// Drop removes a namespace.
	Drop   func(Namespace) error
	Logger *slog.Logger
}

const (
	// window is how long arrivals count as one burst: about the start time of some
	// dozens of containers, which ends before a refill helps.
	window = time.Second
	// quiet is the time without arrivals before a refill, which would contend with them
	// for RTNL.
	quiet = 50 * time.Millisecond
	// patience is the time after the last arrival when a refill starts at the latest.
	// Until then it also waits for idle CPUs: preparing a namespace takes about as much
	// processor time as starting a container.
	patience = 5 * time.Second
	// retry is the pause after a failure.
	retry = time.Second
)

// Pool is a pool of one network. It is safe for concurrent use.
type Pool struct {
	opts Options

	pressure pressure // used by the refill only

	mu      sync.Mutex
	ready   []Namespace
	demand  demand
	floor   int // set by Fill
	making  bool
	closed  bool
	stats   Stats
	wake    chan struct{}
	changed *sync.Cond // signals a change of ready or failure
	failure error      // of the last Make

	stop context.CancelFunc
	done chan struct{}
}

// Stats are the counters of a pool.
type Stats struct {
	Ready, Target       int
	Taken, Missed, Made uint64
	Failure             string // of the last Make
}

// New starts a pool, which begins to fill at once.
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

// Take returns the next namespace, false if the pool is empty.
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

// Shed drops a namespace to free its leases, after waiting for one in preparation if
// the pool is empty. It returns false if there is none.
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

// Fill waits until n namespaces are ready or the pool is full. They stay until they are
// taken or the cooldown ends.
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

// Stats returns the counters.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Ready, s.Target = len(p.ready), p.target(time.Now())
	if p.failure != nil {
		s.Failure = p.failure.Error()
	}
	return s
}

// Close drops all namespaces.
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
	p.ready = nil
	return errors.Join(errs...)
}

// limit returns the largest number of ready namespaces.
func (p *Pool) limit() int {
	return min(p.opts.Config.Maximum, int(p.opts.Config.MemoryLimit/config.NamespaceMemory))
}

// target returns the intended number of ready namespaces.
func (p *Pool) target(now time.Time) int {
	if p.opts.Config.WarmTarget == 0 {
		return 0
	}
	return min(max(p.opts.Config.WarmTarget, p.demand.expected(now)), p.limit())
}

// pop removes the oldest namespace: neighbours have learned its address, and its hooks
// are attached.
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
		p.opts.Logger.Error("remove a pooled namespace", "error", err)
	}
}

// refill keeps the pool at its target until ctx ends.
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
			if wait == retry { // an immediate retry would fail again
				select {
				case <-ctx.Done():
				case <-time.After(retry / 10):
				}
			}
		}
	}
}

// disturbs reports whether a refill would contend with starting containers. If few
// namespaces are ready, it may run between containers of a stream, unless the CPUs are
// busy.
func (p *Pool) disturbs(now time.Time, few bool) bool {
	since := p.demand.since(now)
	if few {
		return since < quiet && p.pressure.isHigh(now)
	}
	return since < quiet || since < patience && p.pressure.isHigh(now)
}

// one prepares or drops one namespace and returns the time until the next step; 0 is
// immediately.
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
		return time.Second // until the target changes
	case p.floor == 0 && p.disturbs(now, n < p.opts.Config.Minimum):
		p.mu.Unlock()
		return quiet
	}
	p.making = true
	p.mu.Unlock()

	made, err := p.opts.Make()

	p.mu.Lock()
	p.making = false
	defer p.mu.Unlock()
	defer p.changed.Broadcast()
	if p.failure = err; err != nil {
		p.opts.Logger.Debug("prepare a pooled namespace", "error", err)
		return retry
	}
	p.stats.Made++
	p.ready = append(p.ready, made)
	return 0
}
