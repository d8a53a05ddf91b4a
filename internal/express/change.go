package express

import (
	"time"

	"github.com/scon-project/scon/internal/express/rules"
	"github.com/scon-project/scon/internal/host/changes"
)

// The way of a change, from the kernel's announcement to what goes express again: stale
// withdraws what it can concern, in the goroutine that read it; changed has the hooks note
// it, in the loop; readRules takes the rules in. heartbeat counts what was announced and
// what of it was taken in.

// stale takes each change that makes decisions stale, in the goroutine that read
// it from the kernel: those that it can concern, or all where they are not known or
// too many. If rules or tc filters may have changed, nothing goes
// express until the loop knows them: they may concern any connection, or be
// skipped. Of nftables' that is so from the first message of a transaction on.
func (d *Daemon) stale(e changes.Event) {
	if e.Message.Data != nil {
		if d.policy.live.Note(e.Message) {
			d.heartbeat.rulesChanged()
		}
		return
	}
	d.counts.changes[e.Kind].Add(1)
	if e.Topology {
		d.heartbeat.networkChanged(e.Number)
	}
	if e.Kind == changes.Overrun {
		d.policy.live.Lost(e.Reason)
	}
	switch e.Kind {
	case changes.Ruleset, changes.Filter, changes.Overrun:
		d.heartbeat.rulesChanged()
	}
	if e.Kind != changes.Ruleset && !d.table.MakeStale(e.Scope) {
		d.heartbeat.newGeneration(e.Reason)
	}
}

// changed takes a change of the network and those that are queued behind it, so
// that the devices are scanned once for a burst of containers: not while they are read or
// hooked. Decisions are stale already.
func (d *Daemon) changed(c changes.Event, idle bool) error {
	d.composer.RetireDiscards(time.Now()) // their packets may be for this host now
	for queued := true; queued; {
		d.hooks.Note(c)
		d.heartbeat.networkNoted(c.Number)
		select {
		case c, queued = <-d.sources.changes:
		default:
			queued = false
		}
	}
	if idle {
		d.hooks.Update()
	}
	return d.readRules(time.Now())
}

// readRules reads the rules if they have changed since, or could not be read,
// applies them, and lets the programs go on: not before the devices that they are about
// are known, and what packets must pass there.
func (d *Daemon) readRules(now time.Time) error {
	change, unread := d.heartbeat.unread()
	if !unread || d.hooks.Unsettled() || d.heartbeat.unnoted() {
		return nil
	}
	c, err := d.policy.follow()
	if err != nil {
		return nil
	}
	if c.MayTrack() {
		d.composer.RetireTracked(now)
	}
	if !c.Nothing() {
		d.rulesChanged(c, now)
	}
	d.heartbeat.rulesRead(change)
	err = d.heartbeat.beat()
	if !c.Nothing() {
		d.composer.Rejudge(now)
	}
	return err
}

// rulesChanged applies a change of the rules: the decisions that it concerns are
// withdrawn.
func (d *Daemon) rulesChanged(c *rules.Change, now time.Time) {
	d.followEarly()
	why := d.policy.everything(c)
	if why == "" && !d.table.WithdrawEarly() {
		why = "rules changed while packets of short connections were being recorded"
	}
	if why == "" {
		why = d.composer.RulesChanged(c, now)
	}
	if why != "" {
		d.heartbeat.newGeneration(why)
		d.composer.RetireTouched(now)
	}
	d.composer.RetireDiscards(now)
	d.hooks.SetTunnels()
}

// devicesChanged removes the Conentries that rules about devices may concern now.
func (d *Daemon) devicesChanged() {
	now := time.Now()
	d.followEarly()
	d.composer.RetireTracked(now)
	d.composer.RetireTouched(now)
	d.composer.Rejudge(now)
}
