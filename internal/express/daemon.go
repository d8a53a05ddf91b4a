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
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/host/changes"
	"github.com/scon-project/scon/internal/host/nlmsg"
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

// beatInterval is how often the programs hear from the loop. Five beats may be
// late before they become inert.
const beatInterval = 200 * time.Millisecond

// sweepInterval is how often idle Conentries are looked for.
const sweepInterval = time.Second

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

// Daemon is the state of the loop.
type Daemon struct {
	opts    Options
	log     *slog.Logger
	started time.Time

	dp     *datapath.Datapath
	table  *contable.Table
	ct     *conntrack.Client
	namer  *discover.Namer
	links  *nlmsg.Socket // asks about devices
	stop   context.CancelFunc
	paused bool
	agent  *startup.Agent              // nil unless it is enabled
	broker *pipe.Broker                // nil unless it is enabled, and works
	noPipe error                       // why it does not
	driver *docker.Driver              // nil unless it is enabled
	obeys  atomic.Pointer[pipe.Broker] // the same, for who hears of changed rules

	devices     devices
	policy      policy
	dropRules   dropRules
	unannounced unannounced
	ends        map[conntrack.Tuple]oneEnd
	resets      []reset // in the order of their times
	resetDue    *time.Timer
	lookDue     *time.Timer       // at devices.due
	refused     map[string]uint64 // why connections were not composed
	counts      counts

	ctx    context.Context     // ends with Run
	calls  chan func()         // of API clients, run in the loop
	named  chan namedContainer // answers of the namer
	naming sync.WaitGroup      // its goroutines
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
		refused: make(map[string]uint64),
		calls:   make(chan func()),
		named:   make(chan namedContainer, 64),
		policy:  newPolicy(),
		ends:    make(map[conntrack.Tuple]oneEnd),

		resetDue: stopped(),
		lookDue:  stopped(),
	}
	d.devices = newDevices()
	defer d.devices.close()
	defer func() { stop(); d.endNaming() }()
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
	if d.links, err = nlmsg.Open(nlmsg.Options{Family: unix.NETLINK_ROUTE}); err != nil {
		return err
	}
	defer d.links.Close()
	d.namer = discover.NewNamer()

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
	d.log.Info("SCON is up", "mode", d.dp.Mode(), "containers", len(d.devices.ports), "uplinks", len(d.devices.uplinks), "conentries", d.table.Len())

	err = d.loop(ctx, sources)
	stop()
	<-served
	err = errors.Join(err, d.stopDriver(), d.stopAgent(), d.stopBroker())
	d.rest()
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

// newGeneration makes every decision stale at once. It is called in the
// goroutine that hears of a change first.
func (d *Daemon) newGeneration(reason string) {
	generation := &d.dp.Settings().Generation
	if atomic.AddUint32(generation, 1) == 0 {
		atomic.AddUint32(generation, 1)
	}
	if b := d.obeys.Load(); b != nil {
		b.Recheck()
	}
	d.log.Debug("new generation", "reason", reason)
}

// begin hooks the devices, takes over what an earlier daemon left, and shows
// the first sign of life.
func (d *Daemon) begin() error {
	// The last heartbeat of an earlier daemon may still count, but the rules
	// have not been read.
	d.makeInert()
	d.newGeneration("start")
	if err := d.rescan(false); err != nil {
		return err
	}
	now := time.Now()
	if err := d.findUnannounced(); err != nil {
		return err
	}
	if d.dp.Adopted() {
		kept := d.table.Adopt(func(port int) bool { return d.devices.ports[port] != nil }, d.stillFit, now)
		d.table.All(d.unannounced.add)
		d.log.Info("took over Conentries of an earlier daemon", "kept", kept)
	}
	d.dp.Settings().Paused = 0
	return d.readRules(now)
}

// stillFit asks conntrack about a connection that an earlier daemon composed.
// Conntrack may have lost it since and picked it up in the middle, as another
// one: perhaps not established, and not liberal.
func (d *Daemon) stillFit(t conntrack.Tuple) (conntrack.Conn, error) {
	conn, err := d.ct.Get(t)
	if err != nil {
		return conn, err
	}
	if why := d.unfit(conn); why != "" {
		return conn, fmt.Errorf("adopting connection %v: %s", t, refusalText[why])
	}
	if conn.Orig.Proto == protoTCP {
		return conn, d.ct.UpdateTCP(conn, conntrack.TCPUpdate{})
	}
	return conn, nil
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

// loop is the daemon's life.
func (d *Daemon) loop(ctx context.Context, s sources) error {
	beat, sweep := time.NewTicker(beatInterval), time.NewTicker(sweepInterval)
	defer beat.Stop()
	defer sweep.Stop()
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
			d.heard(e)
		case n := <-d.named:
			d.name(n)
		case call := <-d.calls:
			call()
		case now := <-d.resetDue.C:
			d.followResets(now)
		case <-d.lookDue.C:
			d.look()
		case <-beat.C:
			now := time.Now()
			d.table.Release(now)
			d.askUnannounced(now)
			if err := d.beat(); err != nil {
				return err
			}
		case now := <-sweep.C:
			d.tellConntrack(now)
			d.table.Sweep(now)
			d.lookAtDelivery()
			d.lookAtPrograms(now)
			if err := d.checkRules(now); err != nil {
				return err
			}
		}
	}
}

// lost is why the daemon ends when it can no longer hear of changes: the
// programs must not go on believing in it.
func lost(ctx context.Context, what string) error {
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("the kernel no longer tells of %s", what)
}

// rest makes the programs inert and lets the packets pass that are under way
// between two of them.
func (d *Daemon) rest() {
	d.makeInert()
	time.Sleep(20 * time.Millisecond)
}

// makeInert takes the heartbeat back.
func (d *Daemon) makeInert() {
	ticks := uint32(2 * time.Second / d.dp.Tick())
	heartbeat := &d.dp.Settings().Heartbeat
	atomic.StoreUint32(heartbeat, atomic.LoadUint32(heartbeat)-ticks)
}
