package bench

import (
	"fmt"
	"time"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/lab/bench/peer"
	"github.com/scon-project/scon/test/bed/lab"
)

// changes of the rules during a sample. Its counts are valid after stop.
type changes struct {
	made uint64 // changes
	// Packets of the connection that changes concern: sent after a change, and those of
	// them that the rules have seen.
	sent, regular uint64
	// late is the longest time from a change until the last of these packets went express.
	late time.Duration

	quit  chan struct{}
	ended chan error
}

// startChanges changes the rules until stop, as the mode has it.
func (b *churnBed) startChanges(mode Mode) *changes {
	c := &changes{quit: make(chan struct{}), ended: make(chan error, 1)}
	step := map[change]func() error{
		noChange:  func() error { return nil },
		untouched: c.touchNothing(b.changer),
		concerned: c.concern(b.changer, b.watched),
	}[mode.change]
	go func() {
		c.ended <- netns.Do(b.lab.Node(lab.Device), func() error { return c.run(step, b.options.Changes) })
	}()
	return c
}

// stop ends the changes.
func (c *changes) stop() error {
	close(c.quit)
	return <-c.ended
}

// run calls step a number of times a second. A step that takes longer delays the next.
func (c *changes) run(step func() error, perSecond int) error {
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for {
		select {
		case <-c.quit:
			return nil
		case <-tick.C:
			if err := step(); err != nil {
				return fmt.Errorf("change the rules: %w", err)
			}
		}
	}
}

// touchNothing returns a step that adds a rule to the services, or removes it.
func (c *changes) touchNothing(to *changer) func() error {
	return func() error {
		c.made++
		if c.made%2 == 1 {
			return to.add("changing", endpointRule())
		}
		return to.empty("changing")
	}
}

// afterChange is the number of packets that are sent after a change that concerns them.
const afterChange = 20

// concern returns a step that adds a rule that concerns a connection, or removes it. The
// connection goes express before, and its packets are counted after a rule was added.
func (c *changes) concern(to *changer, connection *peer.Crowd) func() error {
	return func() error {
		if c.made%2 == 1 {
			c.made++
			return to.empty("concerned")
		}
		before, err := goExpress(to, connection)
		if err != nil {
			return err
		}
		c.made++
		if err := to.add("concerned", limitRule(connection.Port())); err != nil {
			return err
		}
		var ends [afterChange]time.Duration
		changed := time.Now()
		for i := range ends {
			if err := connection.Each(); err != nil {
				return err
			}
			ends[i] = time.Since(changed)
		}
		after, err := to.watched()
		if err != nil {
			return err
		}
		regular := min(after-before, afterChange) // another connection may have the port, too
		c.sent += afterChange
		c.regular += regular
		if express := afterChange - regular; express > 0 { // the first of them
			c.late = max(c.late, ends[express-1])
		}
		return nil
	}
}

// goExpress sends until the rules see no packet of the connection, and returns their
// count.
func goExpress(to *changer, connection *peer.Crowd) (uint64, error) {
	last, err := to.watched()
	for deadline := time.Now().Add(warmLimit); err == nil && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if err := connection.Each(); err != nil {
			return 0, err
		}
		before := last
		if last, err = to.watched(); err == nil && last == before {
			return last, nil
		}
	}
	if err == nil {
		err = fmt.Errorf("the connection that a change concerns does not go express within %v", warmLimit)
	}
	return 0, err
}
