package express

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// loopLimit is how long a round of the loop may take, as with systemd's watchdog.
	loopLimit = 30 * time.Second
	// silenceLimit is how long a heartbeat is valid.
	silenceLimit = 5 * beatInterval
	// answerLimit is how long Ready waits for the loop.
	answerLimit = 2 * time.Second
)

// Healthy returns why the daemon should be started again, nil if its loop works. It does
// not wait for the loop.
func (b backend) Healthy() error { return healthy(b.d.pulse.Since()) }

func healthy(quiet time.Duration) error {
	if quiet > loopLimit {
		return fmt.Errorf("the loop has not completed a round for %d s; the programs are inert, packets go regular", int(quiet.Seconds()))
	}
	return nil
}

// Ready returns why packets cannot go express, nil if they can or an operator has paused
// express.
func (b backend) Ready() error {
	ctx, cancel := context.WithTimeout(b.ctx, answerLimit)
	defer cancel()
	why, err := inLoop(backend{d: b.d, ctx: ctx}, func(d *Daemon) (error, error) { return d.view().ready(time.Now()), nil })
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("the loop has not answered for %v", answerLimit)
	}
	return errors.Join(err, why)
}

// ready is Ready in the loop.
func (v view) ready(now time.Time) error {
	var errs []error
	for _, dev := range v.hooks.Unhooked() {
		errs = append(errs, fmt.Errorf("%s could not be hooked: %s", dev.Dev, dev.Reason))
	}
	if f, inert := v.inertFinding(now); inert {
		errs = append(errs, fmt.Errorf("%s: %s", f.What, f.Why))
	}
	return errors.Join(errs...)
}
