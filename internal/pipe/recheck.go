package pipe

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

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
		b.detachAll()
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
		case !c.attached && !c.over && !c.checking && age >= proofAge:
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
func (b *Broker) recheck(changed time.Time) *sync.WaitGroup {
	deadline := changed.Add(proofPatience)
	if least := time.Now().Add(leastPatience); deadline.Before(least) {
		deadline = least
	}
	var round sync.WaitGroup
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.connections {
		switch {
		case c.attached || c.over:
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
	return c.prove(deadline)
}

// settleCheck applies a proof's result, and reports whether another proof is due.
func (c *connection) settleCheck(err error) (again bool) {
	b := c.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.connections[c] || c.over {
		return false
	}
	if err != nil {
		b.counts.Refused["rules changed"]++
		b.log.Debug("pipe: reset a connection that the network no longer permits", "name", c.name, "error", err)
		c.reset()
		return false
	}
	c.proven = time.Now()
	again, c.again = c.again, false
	c.checking = again
	return again
}
