package express

import (
	"errors"
	"fmt"
	"time"

	"github.com/scon-project/scon/internal/express/composer"
	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/host/changes"
)

// lookInterval is the time between two looks at what the kernel does not announce, and
// between searches for idle Conentries: a second, as looks are at heartbeats.
const lookInterval = time.Second - beatInterval/2

// restInterval is the same while nothing goes express.
const restInterval = 10 * time.Second

// longestBlind is how long packets go express while the programs of others at devices
// cannot be looked at, because the kernel's lock of rtnetlink is held: it is needed to
// attach some of them, too.
const longestBlind = 5 * time.Second

// pieceLength is how many Conentries of the table the loop visits, for a reader or to
// sweep them, before it goes on with other work: some milliseconds.
const pieceLength = 1 << 12

// sweeper looks for idle Conentries piece by piece. It belongs to the loop.
type sweeper struct {
	next uint32        // place of a Conentry
	due  chan struct{} // has an element while a sweep is not finished
}

func newSweeper() sweeper { return sweeper{due: make(chan struct{}, 1)} }

// start begins a sweep, unless the last one is not finished.
func (s *sweeper) start() {
	if s.next == 0 {
		s.goOn()
	}
}

// goOn has a piece be due. One may be: events that are taken ahead of a sweep's first piece
// look at what is due, and begin a sweep.
func (s *sweeper) goOn() {
	select {
	case s.due <- struct{}{}:
	default:
	}
}

// piece calls fn with the first place of the piece that is due; fn returns that of
// the next one, 0 at the end.
func (s *sweeper) piece(fn func(from uint32) (next uint32)) {
	if s.next = fn(s.next); s.next != 0 {
		s.goOn()
	}
}

// loop drives the modules until the daemon's context ends.
func (d *Daemon) loop(s sources) error {
	d.sources = s
	for {
		if over, err := d.turn(nil); over || err != nil {
			return err
		}
	}
}

// turn does what is due next. While busy is not closed, devices are read or hooked, and only
// what is no matter of devices is done; nil is for everything. It reports when busy is closed,
// or when nobody hears of changes any more, as the daemon ends or has to.
func (d *Daemon) turn(busy <-chan struct{}) (over bool, err error) {
	idle := busy == nil
	// A beat that is due waits for nothing else.
	select {
	case <-d.beats:
		return false, d.beat(time.Now(), idle)
	default:
	}
	select {
	case <-busy:
		return true, nil
	case <-d.ctx.Done():
		return true, nil
	case <-d.beats:
		return false, d.beat(time.Now(), idle)
	case c, ok := <-d.sources.changes:
		if !ok {
			return true, d.lost("changes of the network")
		}
		return false, d.changed(c, idle)
	case gone, ok := <-d.sources.destroyed:
		if !ok {
			return true, d.lost("the ends of connections")
		}
		d.destroyed(gone)
	case call := <-d.calls:
		if idle {
			err = d.look(time.Now())
		}
		call()
	case events, ok := <-when(idle, d.sources.events):
		if !ok {
			return true, d.lost("connections that could go express")
		}
		return false, d.events(events, time.Now())
	case i := <-when(idle, d.hooks.Identified()):
		d.hooks.SetContainer(i)
	case end := <-when(idle, d.grower.done):
		d.grower.finish(end)
	case now := <-when(idle, d.tcp.Due()):
		d.tcp.CorrectResets(now)
	case now := <-when(idle, d.early.Due()):
		d.early.Sweep(now)
	case <-when(idle, d.hooks.Due()):
		d.hooks.Rescan()
		return false, d.readRules(time.Now())
	case <-when(idle, d.sweeper.due):
		if err := d.eventsAhead(); err != nil {
			return false, err
		}
		d.sweeper.piece(d.sweepPiece)
	}
	return false, err
}

// when returns a channel, or one of which nothing comes.
func when[T any](is bool, c <-chan T) <-chan T {
	if !is {
		return nil
	}
	return c
}

// goOn runs wait outside the loop: it reads or hooks devices, and may wait for the kernel's
// lock of rtnetlink again and again. Meanwhile the loop's turns go on.
func (d *Daemon) goOn(wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		wait()
	}()
	if d.sources.changes == nil { // the loop does not run yet
		<-done
		return
	}
	for over := false; !over; {
		var err error
		if over, err = d.turn(done); err != nil && !over {
			d.log.Error("going on while devices are read or hooked", "error", err)
		}
	}
	select {
	case <-done:
	default: // the loop is about to end
		d.heartbeat.end()
		<-done
	}
}

// lost is why the daemon ends when it no longer learns of changes: the programs
// must not rely on it any more.
func (d *Daemon) lost(what string) error {
	if d.ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("the kernel no longer reports %s", what)
}

// destroyed takes the end of a connection in conntrack.
func (d *Daemon) destroyed(gone conntrack.Destroyed) {
	if gone.Overrun {
		d.endsLost()
		return
	}
	d.composer.Destroyed(gone)
}

// endsLost has every Conentry confirmed by a regular packet again, and conntrack asked for
// it as the heartbeats allow: connections may have left conntrack.
func (d *Daemon) endsLost() {
	d.counts.overruns++
	d.heartbeat.newGeneration("ends of connections were lost")
	d.composer.Doubt()
}

// eventsAtOnce bounds how many events are taken together: some milliseconds.
const eventsAtOnce = 32

// events takes events, so that conntrack is asked about all of their candidates together.
func (d *Daemon) events(all []datapath.Event, now time.Time) error {
	var waiting []datapath.Event
	var candidates []composer.Candidate
	for _, e := range all {
		if e.Closed || e.Progress || e.Spares {
			d.event(e, now)
			continue
		}
		tuple, port := contable.TupleOf(e.Key, e.Addrs6)
		candidates = append(candidates, composer.Candidate{Tuple: tuple, Port: port})
		waiting = append(waiting, e)
	}
	if len(candidates) == 0 {
		return nil
	}
	if err := d.look(now); err != nil {
		return err
	}
	for _, i := range d.composer.Candidates(candidates, now) {
		d.counts.composing.Add(waiting[i].Waited())
	}
	d.grower.check(now)
	return nil
}

// ahead is how many times events that are queued are taken before a piece of a sweep: new
// connections do not wait while a large table is swept. It takes as long as two pieces.
const ahead = 8

// eventsAhead takes events that are queued while a piece of a sweep is due.
func (d *Daemon) eventsAhead() error {
	for range ahead {
		select {
		case events, ok := <-d.sources.events:
			if !ok {
				return nil // the loop hears of that
			}
			if err := d.events(events, time.Now()); err != nil {
				return err
			}
		default:
			return nil
		}
	}
	return nil
}

// event takes what the programs report of a connection with a Conentry.
func (d *Daemon) event(e datapath.Event, now time.Time) {
	if e.Spares {
		d.early.Refill(now)
		return
	}
	switch entry := d.table.At(e.Slot); {
	case entry == nil && e.Reset:
		if tuple, early := d.table.EarlyAt(e.Slot); early {
			d.tcp.ResetEarly(tuple, e.Stray, now)
		}
	case entry == nil: // gone in the meantime, or early
	case e.Progress:
		d.tcp.MovedOn(entry)
	default:
		if e.Reset {
			d.tcp.Reset(entry, e.Stray, now)
		}
		d.table.Retire(entry)
	}
}

// beat does what is due at each heartbeat, and writes it: less while devices are read or
// hooked.
func (d *Daemon) beat(now time.Time, idle bool) error {
	d.resume(now)
	if d.dp.EndsLost() {
		d.endsLost()
	}
	d.composer.Recheck(now)
	if !idle {
		d.pollSilent(now)
		d.pollRules(now)
		return errors.Join(d.readRules(now), d.writeBeat(now))
	}
	d.table.Release()
	d.grower.check(now)
	if !d.rests(now) {
		if err := d.look(now); err != nil {
			return err
		}
	}
	d.sweepEarly(now)
	return d.writeBeat(now)
}

// resume has everything read again after a standstill, before the next heartbeat.
func (d *Daemon) resume(now time.Time) {
	if d.heartbeat.resume(now) {
		missed := changes.Event{Kind: changes.Overrun, Reason: "the daemon stood still", Topology: true}
		d.stale(missed)
		d.hooks.Note(missed)
	}
}

// sweepEarly does what is due about early Conentries, and sets slots aside for others.
func (d *Daemon) sweepEarly(now time.Time) {
	d.followEarly()
	d.early.Sweep(now)
}

// followEarly says of which containers programs may compose connections now.
func (d *Daemon) followEarly() {
	changes := d.table.Changes()
	settled := d.hooks.Settled() && !d.heartbeat.unnoted()
	d.early.Follow(d.silent.isOn(beLiberal), d.hooks.EarlyPorts(), d.hooks.EarlyUplinks())
	if settled && d.hooks.WideUplinks() {
		d.table.SetWide(changes)
	}
}

// writeBeat writes the heartbeat.
func (d *Daemon) writeBeat(now time.Time) error {
	if err := d.heartbeat.beat(); err != nil {
		return err
	}
	d.watchdog.Beat(now)
	d.pulse.Beat()
	return nil
}

// sees reports whether what packets must pass at devices is known well enough for
// decisions to hold.
func (d *Daemon) sees(now time.Time) bool {
	return !d.hooks.Unsettled() && (d.table.IsEmpty() || now.Sub(d.seen) <= longestBlind)
}

// rests reports whether nothing has to be looked at: there is no decision that relies on
// it, and look is called before the first one can be made.
func (d *Daemon) rests(now time.Time) bool {
	_, unread := d.heartbeat.unread()
	return d.table.IsEmpty() && !unread && now.Sub(d.looked) < restInterval
}

// look does what is due at intervals: it looks at what the kernel does not announce, and
// begins to search for idle Conentries.
func (d *Daemon) look(now time.Time) error {
	d.pollSilent(now)
	due := now.Sub(d.looked) >= lookInterval
	if due {
		d.looked = now
		d.sweeper.start()
		d.hooks.Poll(now)
		d.seen = now
		d.hooks.Update()
	}
	if d.pollRules(now) || due {
		return d.readRules(now)
	}
	return nil
}

// pollSilent looks at what the kernel does not announce and leases rely on.
func (d *Daemon) pollSilent(now time.Time) {
	if !d.silent.due(now) {
		return
	}
	if changed := d.silent.poll(d.hooks.PathDevices(), d.hooks.Ageing()); changed != "" {
		d.stale(changes.Event{Kind: changes.Netconf, Reason: changed})
	}
	if d.policy.gotLegacy() {
		d.stale(changes.Event{Kind: changes.Ruleset, Reason: "iptables-legacy has got tables"})
	}
	if err := d.liberal.set(d.silent.values[beLiberal]); err != nil {
		d.log.Error("short connections stay regular", "error", err)
	}
	d.silent.limits.Nexthop = d.hooks.IdleTimer()
	d.composer.SetLimits(d.silent.limits)
}

// sweepPiece sweeps a piece of the table. With the last one every express packet has been
// counted.
func (d *Daemon) sweepPiece(from uint32) (next uint32) {
	now := time.Now()
	d.tcp.UpdateSilent(from, pieceLength, now)
	d.composer.DecideLeases(from, pieceLength, now)
	if next = d.table.Sweep(from, pieceLength, now); next == 0 {
		d.remember(now)
	}
	return next
}

// pollRules looks at functions of others and at rules that the kernel does not announce,
// if it has not for a second.
func (d *Daemon) pollRules(now time.Time) (looked bool) {
	if now.Sub(d.policed) < lookInterval {
		return false
	}
	d.policed = now
	reread := func(reason string) {
		d.policy.live.Lost(reason)
		d.stale(changes.Event{Kind: changes.Ruleset, Reason: reason})
	}
	if d.policy.otherFunctions() {
		reread("functions at Netfilter's hooks changed")
	}
	if d.policy.ownerEnded() {
		reread("a table of nftables has gone with its owner")
	}
	if d.policy.otherLegacy() {
		d.stale(changes.Event{Kind: changes.Ruleset, Reason: "iptables-legacy changed without its lock"})
	}
	d.policy.checkIn(now, d.inLoop, func() { reread("rules that were followed differ from the kernel's") })
	return true
}

// inLoop runs fn in the loop, unless the daemon ends before.
func (d *Daemon) inLoop(fn func()) {
	select {
	case d.calls <- fn:
	case <-d.ctx.Done():
	}
}
