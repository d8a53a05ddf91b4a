package pipe

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/changes"
	"github.com/scon-project/scon/internal/pipe/engine"
	"github.com/scon-project/scon/internal/service"
)

// Recheck reports that rules may have changed. Each connection then proves itself again;
// those that cannot do so within 2 s end. It does not block.
func (b *Broker) Recheck() {
	select {
	case b.changed <- time.Now():
	default: // an earlier change is still pending
	}
}

// networkChanged is Recheck for a change of the network. A MAC address or a neighbour may move
// because a container sends under another one's address, which takes CAP_NET_RAW: such changes
// have the proofs of others repeated once in proofAge, as if nothing had announced them.
func (b *Broker) networkChanged(e changes.Event) {
	if e.Kind != changes.FDB && e.Kind != changes.Neighbour {
		b.Recheck()
	} else if wait, due := b.moves.next(time.Now()); due {
		time.AfterFunc(wait, b.Recheck)
	}
}

// moves spaces the rounds after moves.
type moves struct {
	mu   sync.Mutex
	last time.Time // when the latest round begins
}

// next returns when the round after a move is to begin; due is false if one is to begin that
// the move precedes.
func (m *moves) next(now time.Time) (wait time.Duration, due bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Before(m.last) {
		return 0, false
	}
	if next := m.last.Add(proofAge); now.Before(next) {
		m.last = next
	} else {
		m.last = now
	}
	return m.last.Sub(now), true
}

const (
	// recheckPause is the minimum time between two rounds.
	recheckPause = time.Second
	// leastPatience is the minimum time for a proof in a delayed round.
	leastPatience = proofPatience - recheckPause
)

// recheckAll checks all connections after each change. A round does not wait for the
// previous one.
func (b *Broker) recheckAll() {
	beat := time.NewTicker(min(proofAge, service.PulseInterval))
	defer beat.Stop()
	for {
		b.pulse.Beat()
		var changed time.Time
		select {
		case now := <-beat.C:
			b.refresh(now)
			continue
		case changed = <-b.changed:
		case <-b.ctx.Done():
			return
		}
		b.recheck(changed)
		select {
		case <-time.After(recheckPause):
		case <-b.ctx.Done():
			return
		}
	}
}

// Not every change is announced to the host's network namespace: rules within a container's
// namespace, programs on its cgroup, ipsets and policies of the security module are not.
// Therefore each connection proves itself again when its last proof is proofAge old, and an
// attached one, whose ends return to TCP for that, when it is attachedAge old.
const (
	proofAge    = 10 * time.Second
	attachedAge = time.Minute
	// mostAged bounds the attached ones that return to TCP at a time.
	mostAged = 512
)

// refresh starts the proofs that are due by age.
func (b *Broker) refresh(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var old []*connection
	for c := range b.connections {
		age := now.Sub(c.proven)
		switch {
		case c.attached && age >= attachedAge && len(old) < mostAged:
			c.cut()
			old = append(old, c)
		case c.copies() && !c.checking && age >= proofAge:
			c.checking = true
			b.running.Go(func() { c.check(time.Now().Add(proofPatience)) })
		}
	}
	if len(old) > 0 {
		b.running.Go(func() { b.release(old) })
	}
}

// recheck starts the proofs of all connections after a change of rules. The result waits
// for those that it has started.
//
// Nothing may get from one container to another by the broker from before the first token is
// chosen until that connection's tokens have crossed: two containers that cooperate, with
// CAP_NET_RAW, could carry tokens that the network drops. So all connections are paused
// first, and each is resumed after its own proof.
func (b *Broker) recheck(changed time.Time) *sync.WaitGroup {
	deadline := changed.Add(proofPatience)
	if least := time.Now().Add(leastPatience); deadline.Before(least) {
		deadline = least
	}
	var round sync.WaitGroup
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changes++
	b.detachAll()
	for c := range b.connections {
		c.pause()
	}
	b.settle(deadline)
	for c := range b.connections {
		switch {
		case !c.copies():
		case c.checking:
			c.again = true
		default:
			c.checking = true
			round.Add(1)
			b.running.Go(func() {
				defer round.Done()
				c.check(deadline)
			})
		}
	}
	return &round
}

// copies reports whether bytes may get from one end to the other by the broker or the program.
// The engine copier delivers what an end has sent before it closed or its process died: another
// process may still have its memory. The lock is held.
func (c *connection) copies() bool {
	return !c.attached && (!c.over || c.carriage != nil && !c.ended)
}

// pause pauses a connection that copies, if its engine can. The lock is held.
func (c *connection) pause() {
	if c.paused || !c.copies() {
		return
	}
	c.paused = true
	if c.carriage != nil {
		c.still = c.carriage.Pause()
	} else if m, ok := c.ends[0].Memory.(engine.Pauser); ok {
		if err := m.Pause(); err != nil {
			c.b.log.Error("pipe: reset a connection", "name", c.name, "error", err)
			c.reset()
		}
	}
}

// proveLate has a new connection prove itself again if rules have changed since its tokens
// were chosen: that round did not know it. The lock is held.
func (c *connection) proveLate(changes uint64) {
	if c.b.changes == changes {
		return
	}
	c.pause()
	c.b.settle(time.Now().Add(leastPatience))
	c.checking = true
	c.b.running.Go(func() { c.check(time.Now().Add(proofPatience)) })
}

// resume ends a pause. The lock is held.
func (c *connection) resume() {
	if !c.paused {
		return
	}
	c.paused, c.still = false, nil
	if c.carriage != nil {
		c.carriage.Resume()
	} else if m, ok := c.ends[0].Memory.(engine.Pauser); ok {
		if err := m.Resume(); err != nil {
			c.b.log.Error("pipe: reset a connection", "name", c.name, "error", err)
			c.reset()
		}
	}
}

// stillness is the wait of a round until nothing copies any more for connections that it has
// paused or detached.
type stillness struct {
	done chan struct{}
	err  error // once done is closed
}

// settle begins the wait. The lock is held.
func (b *Broker) settle(deadline time.Time) {
	s := &stillness{done: make(chan struct{})}
	var stills []<-chan struct{}
	for c := range b.connections {
		if c.still != nil {
			stills = append(stills, c.still)
		}
	}
	k := b.program
	b.still = s
	b.running.Go(func() {
		defer close(s.done)
		if s.err = awaitAll(stills, deadline); s.err == nil && k != nil {
			s.err = k.Quiesce()
		}
	})
}

func awaitAll(stills []<-chan struct{}, deadline time.Time) error {
	late := time.NewTimer(time.Until(deadline))
	defer late.Stop()
	for _, still := range stills {
		select {
		case <-still:
		case <-late.C:
			return fmt.Errorf("wait for copies in progress: %w", unix.ETIMEDOUT)
		}
	}
	return nil
}

// awaitStill waits for the latest round, until the deadline.
func (b *Broker) awaitStill(deadline time.Time) error {
	b.mu.Lock()
	s := b.still
	b.mu.Unlock()
	if s == nil {
		return nil // no rules have changed yet
	}
	select {
	case <-s.done:
	default:
		late := time.NewTimer(time.Until(deadline))
		defer late.Stop()
		select {
		case <-s.done:
		case <-late.C:
			return fmt.Errorf("wait for copies in progress: %w", unix.ETIMEDOUT)
		}
	}
	if s.err != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.still == s { // for the proofs that follow
			b.settle(time.Now().Add(proofPatience))
		}
	}
	return s.err
}

// check ends the connection unless its proof succeeds, and repeats it if rules have
// changed meanwhile. A proof that cannot be made has failed.
func (c *connection) check(deadline time.Time) {
	for {
		err := c.proveAdmitted(deadline)
		if !c.settleCheck(err) {
			return
		}
		deadline = time.Now().Add(leastPatience)
	}
}

// proveAdmitted is prove once the gate admits the client's container. A container with many
// connections, or with connections that do not answer, does not delay others' proofs.
func (c *connection) proveAdmitted(deadline time.Time) error {
	owner := c.ends[0].owner.owner
	if !c.b.checks.Enter(owner, deadline) {
		return fmt.Errorf("wait for other proofs of the container: %w", unix.ETIMEDOUT)
	}
	defer c.b.checks.Leave(owner)
	if err := c.b.awaitStill(deadline); err != nil {
		return err
	}
	return c.prove(deadline)
}

// settleCheck applies a proof's result, and reports whether another proof is due.
func (c *connection) settleCheck(err error) (again bool) {
	b := c.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.connections[c] || !c.copies() {
		c.checking = false
		return false
	}
	if err != nil {
		c.checking = false
		b.counts.Refused["rules changed"]++
		b.log.Debug("pipe: reset a connection that the network no longer permits", "name", c.name, "error", err)
		c.reset()
		return false
	}
	c.proven = time.Now()
	again, c.again = c.again, false
	c.checking = again
	if !again {
		c.resume()
	}
	return again
}
