package pipe

import (
	"sync"
	"time"
)

// Recheck says that the network's rules may have changed. Each connection then proves
// itself again; those that do not within 2 seconds end. It returns at once.
func (b *Broker) Recheck() {
	select {
	case b.changed <- time.Now():
	default: // the earlier change is not acted on yet
	}
}

const (
	// recheckPause is the least time between two rounds: rules may change often.
	recheckPause = time.Second
	// leastPatience is what a round that was delayed gives a connection.
	leastPatience = proofPatience - recheckPause
)

// obey checks all connections after changes. A round does not wait for the one
// before.
func (b *Broker) obey() {
	for {
		var changed time.Time
		select {
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

// recheck has all connections prove themselves after a change of rules. The result
// waits for those that it has started.
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

// check ends the connection unless it proves itself, as often as rules have changed.
// A check that cannot be made is one that fails.
func (c *connection) check(deadline time.Time) {
	for {
		err := c.prove(deadline)
		if !c.settleCheck(err) {
			return
		}
		deadline = time.Now().Add(leastPatience)
	}
}

// settleCheck acts on a check's result, and says whether there has to be another one.
func (c *connection) settleCheck(err error) (again bool) {
	b := c.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.connections[c] || c.over {
		return false
	}
	if err != nil {
		b.counts.Refused["rules changed"]++
		b.log.Debug("pipe: the network does not allow a connection any more; reset it", "name", c.name, "error", err)
		c.reset()
		return false
	}
	again, c.again = c.again, false
	c.checking = again
	return again
}
