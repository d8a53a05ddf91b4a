// Package express is SCON's long-running side: it hooks the devices of one
// network namespace, composes Conentries for their connections, and takes
// decisions back when anything that they rest on changes.
//
// The process lives in that namespace. One goroutine, the loop, owns all
// state; it also beats the heart of the programs, so that they become inert
// when it hangs.
package express

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/express/composer"
	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/express/hooks"
	"github.com/scon-project/scon/internal/express/rules"
	"github.com/scon-project/scon/internal/host/changes"
	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/internal/startup"
	"github.com/scon-project/scon/internal/startup/docker"
	"github.com/scon-project/scon/internal/state"
)

// Options say where and how to work.
type Options struct {
	Config   config.Config
	StateDir string // lock, log and daemon.json
	Socket   string
	Netns    string // as given by --netns, for those who read daemon.json
	Logger   *slog.Logger
	Version  string
	// Ready is called once when the socket answers. It may be nil.
	Ready func()
}

// forceClsact is set by tests: hook by clsact even where the kernel has tcx.
var forceClsact bool

// memoryLimit is how many bytes the daemon's own memory may grow to before it
// is collected, whatever is left by that: a list of all Conentries is several
// times their size. With the table and the program, which count as resident as
// well, a daemon of the default size stays below 30 MB. One with an agent has
// more: it would else collect all the time that a hundred containers start, on
// CPUs that they need.
func memoryLimit(c config.Config) int64 {
	limit := 2<<20 + int64(max(c.Connections, 8192))<<10
	if c.Startup.Enabled {
		limit += agentMemory
	}
	return limit
}

// agentMemory is for the agent's requests, records and ports, in bytes.
const agentMemory = 32 << 20

// Daemon is what Run runs: the loop, and the modules that it drives. Each module
// owns its state and says which goroutines may call it.
type Daemon struct {
	opts    Options
	log     *slog.Logger
	started time.Time

	dp        *datapath.Datapath
	heartbeat *heartbeat
	ct        *conntrack.Client
	table     *contable.Table
	policy    policy
	hooks     *hooks.Hooks
	composer  *composer.Composer
	tcp       *composer.TCP
	counts    counts

	namer  *discover.Namer
	agent  *startup.Agent              // nil unless it is enabled
	broker *pipe.Broker                // nil unless it is enabled, and works
	noPipe error                       // why it does not
	driver *docker.Driver              // nil unless it is enabled
	obeys  atomic.Pointer[pipe.Broker] // the same, for who hears of changed rules

	ctx    context.Context // ends with Run
	stop   context.CancelFunc
	calls  chan func()    // of API clients, run in the loop
	owners sync.WaitGroup // goroutines that name the agent's containers
}

// Run works until ctx ends or a client stops it, then removes everything that
// SCON owns in this namespace. It returns nil after an orderly end.
func Run(ctx context.Context, o Options) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()

	unlock, err := state.Lock(o.StateDir)
	if err != nil {
		return err
	}
	defer unlock()
	debug.SetMemoryLimit(memoryLimit(o.Config))
	pins, err := openPins()
	if err != nil {
		return err
	}
	defer pins.unlock()

	d := &Daemon{
		opts: o, log: o.Logger, started: time.Now(), ctx: ctx, stop: stop,
		namer: discover.NewNamer(),
		calls: make(chan func()),
	}
	defer func() { stop(); d.owners.Wait() }()
	defer func() {
		// Nothing half-done stays, but what an earlier daemon left does.
		if err != nil && (pins.fresh || d.dp != nil && !d.dp.Adopted()) {
			err = errors.Join(err, pins.remove())
		}
	}()
	if err := d.load(pins.dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.dp.Close()) }()
	if d.ct, err = conntrack.Open(); err != nil {
		return err
	}
	defer d.ct.Close()
	if err := d.assemble(); err != nil {
		return err
	}
	defer func() { stop(); err = errors.Join(err, d.hooks.Close(), d.policy.close()) }()

	sources, err := d.watch(ctx)
	if err != nil {
		return err
	}
	defer func() { stop(); sources.drain() }()
	if err := d.begin(); err != nil {
		return err
	}
	if err := d.startAgent(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stopAgent()) }()
	d.startBroker()
	defer func() { err = errors.Join(err, d.stopBroker()) }()
	if err := d.startDriver(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stopDriver()) }()
	served, err := d.serve(ctx)
	if err != nil {
		return err
	}
	if o.Ready != nil {
		o.Ready()
	}
	if err := dropProgramPages(); err != nil {
		d.log.Debug("after the start", "error", err)
	}
	d.log.Info("SCON is up", "mode", d.dp.Mode(), "containers", len(d.hooks.Ports()), "uplinks", len(d.hooks.Uplinks()), "conentries", d.table.Len())

	err = d.loop(ctx, sources)
	stop()
	<-served
	err = errors.Join(err, d.stopDriver(), d.stopAgent(), d.stopBroker())
	d.heartbeat.rest()
	return errors.Join(err, pins.remove(), state.Remove(o.StateDir))
}

// load loads the datapath and makes the table over it.
func (d *Daemon) load(pinDir string) error {
	c := d.opts.Config
	dp, err := datapath.Load(datapath.Options{
		PinDir:       pinDir,
		Slots:        contable.Slots(c.Connections),
		Admit:        uint32(c.Admit),
		Lease:        c.Lease,
		LeasePackets: uint32(c.LeasePackets),
		ForceClsact:  forceClsact,
	})
	if err != nil {
		return err
	}
	d.dp = dp
	d.table = contable.New(dp.Memory(), contable.Options{
		Connections:  c.Connections,
		PerContainer: max(c.Connections*c.PerContainerShare/100, 1),
		Idle:         c.FlushIdle,
	})
	return nil
}

// assemble connects the modules. Each is given what it asks of the others.
func (d *Daemon) assemble() (err error) {
	c := d.opts.Config
	d.heartbeat = newHeartbeat(d.dp, d.log, d.recheckPipe)
	d.policy, err = openPolicy(rules.Options{ExactCounters: c.ExactCounters}, d.log, d.heartbeat.beatDuring)
	if err != nil {
		return err
	}
	d.hooks, err = hooks.New(hooks.Options{
		Datapath: d.dp,
		Bridges:  c.Bridges,
		Uplinks:  c.Uplinks,
		Logger:   d.log,

		Identify:      d.nameOf,
		Owner:         d.ownedBy,
		TouchesTunnel: func(port uint16) (rules.Rule, bool) { return d.policy.TouchesTunnel(port) },

		NewGeneration:  d.heartbeat.newGeneration,
		FiltersChanged: func(reason string) { d.stale(changes.Event{Kind: changes.Filter, Reason: reason}) },
		PortGone:       func(ifindex int) { d.composer.ForgetPort(ifindex, time.Now()) },
		DevicesChanged: func() { d.composer.RetireTouched(time.Now()) },
		BeatDuring:     d.heartbeat.beatDuring,
	})
	if err != nil {
		return errors.Join(err, d.policy.close())
	}
	d.composer = composer.New(composer.Options{
		Table:     d.table,
		Conntrack: d.ct,
		Ports:     d.hooks,
		Rules:     &d.policy,
		Lease:     c.Lease,
		Discards:  d.dp.Discards() == nil,
	})
	d.tcp = composer.NewTCP(d.table, d.ct, d.log)
	return nil
}

// sources are the streams that the loop listens to.
type sources struct {
	changes   <-chan changes.Event
	destroyed <-chan conntrack.Destroyed
	events    <-chan datapath.Event
}

// drain waits until nobody calls newGeneration any more. The context has ended.
func (s sources) drain() {
	for range s.changes {
	}
	for range s.destroyed {
	}
}

// watch starts to listen, before anything is looked at, so that no change in
// between is missed.
func (d *Daemon) watch(ctx context.Context) (s sources, err error) {
	if s.changes, err = changes.Watch(ctx, changes.Options{OnStale: d.stale}); err != nil {
		return s, err
	}
	if s.destroyed, err = conntrack.WatchDestroy(ctx, d.dp.EndFilter()); err != nil {
		return s, err
	}
	s.events = d.readEvents(ctx)
	return s, nil
}

// readEvents forwards what the programs tell. It ends with the datapath.
func (d *Daemon) readEvents(ctx context.Context) <-chan datapath.Event {
	events := make(chan datapath.Event, 256)
	go func() {
		defer close(events)
		for {
			e, err := d.dp.ReadEvent()
			if err != nil {
				return
			}
			select {
			case events <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	return events
}

// stale takes each change that makes decisions stale, in the goroutine that read
// it from the kernel. If rules or tc filters may have changed, nothing goes
// express until the loop has looked at them: they may judge single packets, or be
// skipped.
func (d *Daemon) stale(e changes.Event) {
	d.counts.changes[e.Kind].Add(1)
	switch e.Kind {
	case changes.Ruleset, changes.Filter, changes.Overrun:
		d.heartbeat.rulesChanged(e.Reason)
	default:
		d.heartbeat.newGeneration(e.Reason)
	}
}

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
	now := time.Now()
	if d.dp.Adopted() {
		d.log.Info("took over Conentries of an earlier daemon", "kept", d.composer.Adopt(now))
	}
	d.dp.Settings().Paused = 0
	return d.readRules(now)
}

// serve answers clients until ctx ends; the channel is closed afterwards.
func (d *Daemon) serve(ctx context.Context) (_ <-chan struct{}, err error) {
	metrics, err := listenMetrics(d.opts.Config.Metrics)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && metrics != nil {
			metrics.Close()
		}
	}()
	l, err := api.Listen(d.opts.Socket, d.opts.Config.SocketGroup)
	if err != nil {
		return nil, err
	}
	word := state.State{
		PID: pid(), Netns: d.opts.Netns, Socket: d.opts.Socket,
		Version: d.opts.Version, Config: d.opts.Config,
	}
	if err := word.Write(d.opts.StateDir); err != nil {
		l.Close()
		return nil, err
	}
	var b api.Backend = backend{d, ctx}
	if d.agent != nil {
		b = starter{backend{d, ctx}, d.agent}
	}
	var servers sync.WaitGroup
	servers.Go(func() {
		if err := api.Serve(ctx, l, b); err != nil {
			d.log.Error("serving clients", "error", err)
			d.stop()
		}
	})
	if metrics != nil {
		servers.Go(func() {
			if err := api.ServeMetrics(ctx, metrics, b); err != nil {
				d.log.Error("serving metrics", "error", err)
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		servers.Wait()
	}()
	return done, nil
}
