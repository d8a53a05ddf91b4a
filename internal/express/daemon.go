// Package express is the express daemon: it hooks the devices of one network
// namespace, composes Conentries for their connections, and withdraws
// decisions when anything that they depend on changes.
//
// The process lives in that namespace. One goroutine, the loop, owns the state
// of all modules. Only the loop writes the heartbeat, so the programs become
// inert when it hangs.
package express

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/composer"
	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/express/history"
	"github.com/scon-project/scon/internal/express/hooks"
	"github.com/scon-project/scon/internal/express/rules"
	"github.com/scon-project/scon/internal/host/changes"
	"github.com/scon-project/scon/internal/host/sysctl"
	"github.com/scon-project/scon/internal/live"
	"github.com/scon-project/scon/internal/service"
	"github.com/scon-project/scon/internal/state"
)

// Options say where and how to work.
type Options = service.Options

// Page listens for the live page, which consists of the feed and of what the page asks for.
type Page func(feed http.Handler, asked api.Reader) (service.Page, error)

// forceClsact is set by tests: hook by clsact even where the kernel has tcx.
var forceClsact bool

// PageSlots is set by tests: how many slots of each page of the table are used, so that it
// grows soon; 0 for all.
var PageSlots int

// Daemon is what Run runs: the loop, and the modules that it drives. Each module
// owns its state and says which goroutines may call it.
type Daemon struct {
	opts    Options
	page    Page // nil without one
	log     *slog.Logger
	started time.Time

	dp        *datapath.Datapath
	heartbeat *heartbeat
	ct        *conntrack.Client
	table     *contable.Table
	grower    *grower
	policy    policy
	hooks     *hooks.Hooks
	composer  *composer.Composer
	tcp       *composer.TCP
	early     *composer.Early
	liberal   liberal
	pulse     *service.Pulse // of the loop
	watchdog  *service.Watchdog
	sweeper   sweeper // of the table
	silent    silent
	looked    time.Time // at what others do, by the loop
	seen      time.Time // when the last such look at devices was made that came to its end
	policed   time.Time // when rules that are not announced were looked at
	counts    counts
	history   *history.History

	namer  *discover.Namer
	owners owners

	ctx     context.Context // ends with Run
	stop    context.CancelFunc
	calls   chan func()      // of API clients, run in the loop
	sources sources          // once the loop runs
	beats   <-chan time.Time // when a heartbeat is due
	naming  sync.WaitGroup   // goroutines that follow the owners of devices
}

// Run works until ctx ends or a client stops it, then removes everything that
// SCON owns in this namespace. It returns nil after an orderly end. Without page there is no
// live page.
func Run(ctx context.Context, o Options, page Page) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()

	unlock, err := state.Lock(o.StateDir)
	if err != nil {
		return err
	}
	defer unlock()
	pins, err := openPins()
	if err != nil {
		return err
	}
	defer pins.unlock()

	d := &Daemon{
		opts: o, page: page, log: o.Logger, started: time.Now(), ctx: ctx, stop: stop,
		namer: discover.NewNamer(), pulse: service.NewPulse(), watchdog: service.NewWatchdog(), sweeper: newSweeper(), silent: silent{files: sysctl.NewReader()},
		calls: make(chan func()), history: history.New(),
	}
	d.namer.Follow(ctx, d.renamed)
	defer func() { stop(); d.naming.Wait(); d.namer.Unfollow(); err = errors.Join(err, d.namer.Close()) }()
	defer func() {
		// Nothing incomplete stays, except what an earlier daemon left.
		if err != nil && (pins.fresh || d.dp != nil && !d.dp.Adopted()) {
			err = errors.Join(err, pins.remove())
		}
	}()
	d.liberal = newLiberal(o.Config.ShortConnections, pins.dir)
	if err := d.load(pins.dir); err != nil {
		return err
	}
	defer func() { d.grower.wait(); err = errors.Join(err, d.dp.Close()) }()
	if d.ct, err = conntrack.Open(); err != nil {
		return err
	}
	defer d.ct.Close()
	defer d.silent.files.Close()
	if err := d.assemble(); err != nil {
		return err
	}
	defer func() { stop(); err = errors.Join(err, d.hooks.Close(), d.policy.close()) }()

	d.naming.Go(d.followOwners)

	d.beats = d.heartbeat.ticks(ctx)
	sources, err := d.watch(ctx)
	if err != nil {
		return err
	}
	defer func() { stop(); sources.drain() }()
	if err := d.begin(); err != nil {
		return err
	}
	served, err := d.serve(ctx)
	if err != nil {
		return err
	}
	d.log.Info("SCON is up", "mode", d.dp.Mode(), "containers", len(d.hooks.Ports()), "uplinks", len(d.hooks.Uplinks()), "conentries", d.table.Len())

	err = d.loop(sources)
	stop()
	<-served
	d.heartbeat.rest()
	d.early.FlushAll()
	d.early.Sweep(time.Now()) // for FINs that passed meanwhile
	d.grower.wait()
	return errors.Join(err, d.liberal.putBack(), pins.remove(), state.Express.Remove(o.StateDir))
}

// load loads the datapath and makes the table over it.
func (d *Daemon) load(pinDir string) error {
	c := d.opts.Config
	dp, err := datapath.Load(datapath.Options{
		PinDir:       pinDir,
		Connections:  uint32(c.Connections),
		Admit:        uint32(c.Admit),
		LeasePackets: uint32(c.LeasePackets),
		ForceClsact:  forceClsact,
	})
	if err != nil {
		return err
	}
	d.dp = dp
	d.table, err = contable.New(dp.Memory(), contable.Options{
		Connections:  c.Connections,
		PerContainer: max(c.Connections*c.PerContainerShare/100, 1),
		Idle:         c.FlushIdle,
		Lease:        c.Lease,
		LeasePackets: uint32(c.LeasePackets),
		Tick:         dp.Tick(),
		Hooked:       dp.IsTracked,
		Grace:        dp.Grace(),
		PageSlots:    PageSlots,
	})
	if err != nil {
		return errors.Join(err, dp.Close())
	}
	d.grower = newGrower(dp, d.table, c.Connections, d.log)
	return nil
}

// assemble connects the modules. Each is given what it asks of the others.
func (d *Daemon) assemble() (err error) {
	c := d.opts.Config
	d.heartbeat = newHeartbeat(d.dp, d.log, d.sees)
	d.policy, err = openPolicy(rules.Options{ExactCounters: c.ExactCounters, Ends: d.dp.FollowsEnds() != nil}, d.log, d.heartbeat.beatDuring)
	if err != nil {
		return err
	}
	d.hooks, err = hooks.New(hooks.Options{
		Datapath: d.dp,
		Bridges:  c.Bridges,
		Uplinks:  c.Uplinks,
		Regular:  c.Regular,
		Logger:   d.log,

		Identify:      d.nameOf,
		Owner:         d.owners.container,
		TouchesTunnel: func(t rules.Tunnel) (rules.Rule, bool) { return d.policy.TouchesTunnel(t) },

		NewGeneration:  d.heartbeat.newGeneration,
		HasConentries:  d.hasConentries,
		FiltersChanged: func(reason string) { d.stale(changes.Event{Kind: changes.Filter, Reason: reason}) },
		PortThere:      d.table.AddPort,
		PortGone:       d.portGone,
		DevicesChanged: d.devicesChanged,
		GoOn:           d.goOn,
	})
	if err != nil {
		return errors.Join(err, d.policy.close())
	}
	o := composer.Options{
		Table:     d.table,
		Conntrack: d.ct,
		Ports:     d.hooks,
		Rules:     d.policy.live,
		Lease:     c.Lease,
		LeaseMax:  c.LeaseMax,
		Keep: func(port int, k datapath.Kept) {
			if err := d.dp.SetKept(port, k); err != nil {
				d.log.Error("counting regular packets by their reason", "error", err)
			}
		},
	}
	if d.dp.Discards() == nil {
		o.Discardable = d.policy.Discardable
	}
	d.composer = composer.New(o)
	d.tcp = composer.NewTCP(d.table, d.ct, d.log)
	d.early = composer.NewEarly(d.composer, d.dp, d.log)
	return nil
}

// portGone takes that a port is no longer hooked.
func (d *Daemon) portGone(ifindex int) {
	d.early.Flush(ifindex)
	d.composer.ForgetPort(ifindex)
}

// hasConentries reports whether there are, or may be, decisions about packets of the container
// at a port.
func (d *Daemon) hasConentries(port int) bool {
	_, early := d.table.HasEarly(port)
	return early || d.dp.Adopted() || d.table.LenOf(port) > 0
}

// sources are the streams that the loop listens to.
type sources struct {
	changes   <-chan changes.Event
	destroyed <-chan conntrack.Destroyed // nil: the programs report them as events
	events    <-chan []datapath.Event
}

// drain waits until no source calls stale any more. The context has ended.
func (s sources) drain() {
	for range s.changes {
	}
	if s.destroyed != nil {
		for range s.destroyed {
		}
	}
}

// watch starts to listen before any state is read, so that no change is
// missed.
func (d *Daemon) watch(ctx context.Context) (s sources, err error) {
	if s.changes, err = changes.Watch(ctx, changes.Options{OnStale: d.stale, Messages: true}); err != nil {
		return s, err
	}
	if err := d.dp.FollowsEnds(); err != nil {
		d.log.Info("the ends of connections come by ctnetlink", "reason", err)
		if s.destroyed, err = conntrack.WatchDestroy(ctx, d.dp.EndFilter()); err != nil {
			return s, err
		}
	}
	s.events = d.readEvents(ctx)
	return s, nil
}

// gathering is how long events wait for others while many come. Conntrack is asked about
// candidates together, which takes half of the time, and the programs wake nobody meanwhile.
const gathering = time.Millisecond

// readEvents forwards the events of the programs. It ends with the datapath.
func (d *Daemon) readEvents(ctx context.Context) <-chan []datapath.Event {
	queue := make(chan []datapath.Event, ahead)
	go func() {
		defer close(queue)
		for latest := time.Now(); ; {
			events, err := d.dp.ReadEvents(eventsAtOnce)
			if err != nil {
				return
			}
			select {
			case queue <- events:
			case <-ctx.Done():
			}
			if now := time.Now(); now.Sub(latest) < 2*gathering && len(events) < eventsAtOnce {
				time.Sleep(gathering)
			}
			latest = time.Now()
		}
	}()
	return queue
}

// adoptPatience is how long a daemon that takes over waits until it knows whose ports there
// are, where the settings keep containers regular: Conentries of others are lost.
const adoptPatience = time.Second

// begin hooks the devices, takes over what an earlier daemon left, and writes
// the first heartbeat.
func (d *Daemon) begin() error {
	// The last heartbeat of an earlier daemon may still count, but the rules
	// have not been read.
	d.heartbeat.makeInert()
	d.heartbeat.newGeneration("start")
	if err := d.hooks.Scan(); err != nil {
		return err
	}
	if err := d.composer.ListOlder(); err != nil {
		return err
	}
	if d.dp.Adopted() {
		d.hooks.AwaitContainers(adoptPatience)
	}
	now := time.Now()
	d.seen = now
	d.pollSilent(now)
	if d.dp.Adopted() {
		d.early.Adopt()
		d.log.Info("took over Conentries of an earlier daemon", "kept", d.composer.Adopt(now))
	}
	if !d.liberal.want {
		if err := d.liberal.putBack(); err != nil {
			return err
		}
	}
	d.dp.Settings().Paused = 0
	return d.readRules(now)
}

// pageInterval is the time between two looks of live pages at the daemon.
const pageInterval = time.Second

// serve answers clients until ctx ends; the channel is closed afterwards.
func (d *Daemon) serve(ctx context.Context) (<-chan struct{}, error) {
	b := backend{d: d, ctx: ctx}
	feed := live.NewFeed(ctx, source{b}, pageInterval)
	if d.page != nil {
		page, err := d.page(feed, b)
		if err != nil {
			return nil, err
		}
		b.page = page
	}
	return service.Serve(ctx, d.opts, service.Server{
		Service: state.Express, Group: d.opts.Config.SocketGroup,
		Metrics: d.opts.Config.Metrics, WriteMetrics: b.Metrics,
		Page:   b.page,
		Health: d.opts.Config.Health, Probes: api.Probes{Healthy: b.Healthy, Ready: b.Ready},
		Handler: api.Handler(b, feed), Failed: d.stop,
	})
}
