package express

import (
	"context"
	"fmt"
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/host/changes"
	"github.com/scon-project/scon/internal/service"
)

// sweepInterval is how often idle Conentries are looked for.
const sweepInterval = time.Second

// loop drives the modules until ctx ends.
func (d *Daemon) loop(ctx context.Context, s sources) error {
	beat, sweep := time.NewTicker(beatInterval), time.NewTicker(sweepInterval)
	defer beat.Stop()
	defer sweep.Stop()
	watchdog := service.NewWatchdog()
	for {
		select {
		case <-ctx.Done():
			return nil
		case c, ok := <-s.changes:
			if !ok {
				return lost(ctx, "changes of the network")
			}
			if err := d.changed(c, s.changes); err != nil {
				return err
			}
		case gone, ok := <-s.destroyed:
			if !ok {
				return lost(ctx, "the ends of connections")
			}
			d.destroyed(gone)
		case e, ok := <-s.events:
			if !ok {
				return lost(ctx, "connections that could go express")
			}
			d.event(e, time.Now())
		case i := <-d.hooks.Identified():
			d.hooks.SetContainer(i)
		case call := <-d.calls:
			call()
		case now := <-d.tcp.Due():
			d.tcp.CorrectResets(now)
		case <-d.hooks.Due():
			d.hooks.Look()
		case <-beat.C:
			now := time.Now()
			if err := d.beat(now); err != nil {
				return err
			}
			watchdog.Beat(now)
		case now := <-sweep.C:
			if err := d.sweep(now); err != nil {
				return err
			}
		}
	}
}

// lost is why the daemon ends when it no longer learns of changes: the programs
// must not rely on it any more.
func lost(ctx context.Context, what string) error {
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("the kernel no longer reports %s", what)
}

// changed takes a change of the network and those that are queued behind it, so
// that the devices are looked at once for a burst of containers. Decisions are
// stale already.
func (d *Daemon) changed(c changes.Event, more <-chan changes.Event) error {
	for queued := true; queued; {
		d.hooks.Note(c)
		select {
		case c, queued = <-more:
		default:
			queued = false
		}
	}
	d.hooks.Update()
	now := time.Now()
	d.composer.RetireDiscards(now) // their packets may be for this host now
	return d.readRules(now)
}

// destroyed takes the end of a connection in conntrack.
func (d *Daemon) destroyed(gone conntrack.Destroyed) {
	if gone.Overrun {
		// Every Conentry is confirmed by a regular packet again, and asked for as
		// the heartbeats allow.
		d.counts.overruns++
		d.heartbeat.newGeneration("conntrack's messages were lost")
		d.composer.Doubt()
		return
	}
	d.composer.Destroyed(gone, time.Now())
}

// event takes what the programs report of a connection.
func (d *Daemon) event(e datapath.Event, now time.Time) {
	if !e.Closed && !e.Progress {
		tuple, port := contable.TupleOf(e.Key, e.Addrs6)
		d.composer.Candidate(tuple, port, now)
		return
	}
	switch entry := d.table.At(e.Slot); {
	case entry == nil: // gone in the meantime
	case e.Progress:
		d.tcp.MovedOn(entry)
	default:
		if e.Reset {
			d.tcp.Reset(entry, e.Stray, now)
		}
		d.table.Retire(entry, now)
	}
}

// beat does what is due at each heartbeat, and writes it.
func (d *Daemon) beat(now time.Time) error {
	d.table.Release(now)
	d.composer.Recheck(now)
	return d.heartbeat.beat()
}

// sweep does what is due once a second.
func (d *Daemon) sweep(now time.Time) error {
	d.tcp.UpdateSilent(now)
	d.table.Sweep(now)
	d.hooks.Poll(now)
	if reason := d.policy.changedUnannounced(); reason != "" {
		d.stale(changes.Event{Kind: changes.Ruleset, Reason: reason})
	}
	return d.readRules(now)
}

// readRules reads the rules if they have changed since, or could not be read,
// applies them, and lets the programs go on.
func (d *Daemon) readRules(now time.Time) error {
	change, unread := d.heartbeat.unread()
	if !unread || d.policy.read() != nil {
		return nil
	}
	d.composer.RulesChanged(now)
	d.hooks.SetTunnels()
	d.heartbeat.rulesRead(change)
	return d.heartbeat.beat()
}
