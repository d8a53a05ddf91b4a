// Package startup gives containers their network as fast as they start without
// one (startup.txt). Its agent answers CNI's verbs and the OCI wrapper; it owns
// leases and the pool of wired namespaces, and nothing that it made outlives
// its attachment:
//
//   - a pooled namespace is held by nothing but the agent until a container gets
//     it
//   - a device in a runtime's namespace has its attachment's key in its name on
//     the host
//   - a record is written when an ADD is done, and removed when a DEL is
//
// What is in the kernel without a record is taken away when the agent starts.
package startup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/devices"
)

// Options say where and how an agent works.
type Options struct {
	Config   config.Startup
	StateDir string
	Socket   string // where clients find it; "" for those who work without an agent
	Netns    string // as given by --netns, for those who work without an agent
	Logger   *slog.Logger
	// Wait for another agent that works in StateDir, instead of ErrBusy.
	Wait bool
}

// Agent gives containers of one network namespace, in which its process lives,
// their devices. It is safe for concurrent use.
type Agent struct {
	opts  Options
	log   *slog.Logger
	host  *devices.Host
	store *store
	home  uint64 // number of the agent's namespace
	// userns is the number of the user namespace that home belongs to.
	userns  uint64
	beneath bool // the kernel can mount beneath a mount

	ctx        context.Context // ends with the agent
	cancel     context.CancelFunc
	rules      chan struct{} // they have changed
	background sync.WaitGroup

	gates  *gates
	stages *stageLog
	busy   keyed // attachments at work
	census *census

	mu       sync.Mutex
	networks map[string]*network // by name
	records  map[string]*Record  // by key
	owners   map[string]Owner    // by the device on the host
	// listeners are told of changes of owners.
	listeners map[chan []api.Owner]bool
	inPlace   map[string]uint64 // why containers got no pooled namespace
	handed    uint64            // pooled namespaces
	// displaced is when the latest of the runtimes' namespaces was.
	displaced time.Time
	began     map[string]began // stages of scon-oci, by container
	pending   map[string]pendingStart
	claims    map[string]*cni.Conf // networks that have what they need of the host
	closed    bool
}

// New starts an agent and brings the kernel's state and the records together.
func New(o Options) (_ *Agent, err error) {
	a := &Agent{
		opts: o, log: o.Logger, gates: newGates(o.Config.Limits), beneath: netns.HasBeneath(),
		networks: make(map[string]*network), records: make(map[string]*Record),
		owners: make(map[string]Owner), listeners: make(map[chan []api.Owner]bool), inPlace: make(map[string]uint64),
		rules: make(chan struct{}, 1), began: make(map[string]began), pending: make(map[string]pendingStart),
		claims: make(map[string]*cni.Conf),
	}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			a.cancel()
		}
	}()
	if err := a.findHome(); err != nil {
		return nil, err
	}
	if a.store, err = openStore(o.StateDir, a.home, o.Wait); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			a.store.close()
		}
	}()
	if err := (home{a.home, o.Netns}).write(o.StateDir); err != nil {
		return nil, fmt.Errorf("write down where the agent is: %w", err)
	}
	if err := leaveLink(o.Socket, o.StateDir); err != nil {
		return nil, err
	}
	if a.host, err = devices.Open(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			a.host.Close()
		}
	}()
	if a.census = new(census); !o.Wait {
		a.census = newCensus(o.Logger)
	}
	defer func() {
		if err != nil {
			a.census.close()
		}
	}()
	if err := a.recover(); err != nil {
		return nil, err
	}
	if a.stages, err = openStageLog(o.Config.StageLog); err != nil {
		return nil, err
	}
	if err := a.loadNetworks(); err != nil {
		a.stages.close()
		return nil, err
	}
	a.background.Go(a.reconcile)
	a.background.Go(a.guardRules)
	return a, nil
}

// loadNetworks prepares for the networks of the configuration. One that cannot
// be made now is tried again at its first ADD.
func (a *Agent) loadNetworks() error {
	files := make(map[string]string) // by network
	for _, path := range a.opts.Config.Networks {
		c, err := cni.Load(path)
		if err != nil {
			return err
		}
		if other := files[c.Name]; other != "" {
			return fmt.Errorf("startup.networks: %s and %s are both of network %q: want each network once", other, path, c.Name)
		}
		files[c.Name] = path
		if err := a.prepare(a.networkOf(c)); err != nil {
			a.log.Warn("preparing a network", "file", path, "error", err)
		}
	}
	return nil
}

// reconcileInterval is how often the agent looks for containers that have gone
// without a DEL.
var reconcileInterval = 30 * time.Second

// reconcile looks for them until the agent ends. It begins at once: recovery
// has left those to it that a plugin has to be called for, which may hang.
func (a *Agent) reconcile() {
	tick := time.NewTicker(reconcileInterval)
	defer tick.Stop()
	for {
		if err := a.Reconcile(); err != nil && a.ctx.Err() == nil {
			a.log.Error("release attachments whose container is gone", "error", err)
		}
		select {
		case <-a.ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// guardRules restores the agent's rules until it ends.
func (a *Agent) guardRules() {
	tick := time.NewTicker(reconcileInterval)
	defer tick.Stop()
	var soon <-chan time.Time
	for {
		select {
		case <-a.ctx.Done():
			return
		case <-tick.C:
		case <-a.rules:
			if soon == nil {
				soon = time.After(lull)
			}
			continue
		case <-soon:
		}
		soon = nil
		if err := a.keepRules(); err != nil {
			a.log.Error("making rules again that are gone", "error", err)
		}
	}
}

// findHome finds out where the agent is.
func (a *Agent) findHome() error {
	here, err := netns.Open("")
	if err != nil {
		return err
	}
	defer here.Close()
	if a.home, err = inodeOf(here); err != nil {
		return err
	}
	a.userns, err = netns.Owner(here)
	return err
}

// Close ends the agent. Attachments stay, and what their networks need;
// everything else goes.
func (a *Agent) Close() error {
	a.cancel()
	a.background.Wait()
	a.mu.Lock()
	a.closed = true
	for listener := range a.listeners {
		a.endStream(listener)
	}
	networks := slices.Collect(maps.Values(a.networks))
	used := make(map[string]bool)
	for _, r := range a.records {
		used[r.Network.Name] = true
	}
	a.mu.Unlock()
	var errs []error
	for _, n := range networks {
		if n.pool != nil {
			errs = append(errs, n.pool.Close())
		}
	}
	a.census.close()
	a.stages.close()
	if !a.opts.Wait {
		errs = append(errs, a.removeUnused(used))
	}
	a.host.Close()
	a.store.close()
	return errors.Join(errs...)
}

// removeUnused takes away what only containers needed that have gone.
func (a *Agent) removeUnused(used map[string]bool) error {
	if used[unknownNetwork] {
		return nil
	}
	networks, err := a.store.getNetworks()
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range networks {
		if !used[c.Name] {
			errs = append(errs, a.host.Unprepare(c))
		}
	}
	if err := errors.Join(errs...); err != nil || len(used) > 0 {
		return err
	}
	return errors.Join(a.store.removeAll(), removeLink(a.opts.Socket))
}

func (a *Agent) record(key string) *Record {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.records[key]
}

// keep writes a record down: from then on the attachment exists.
func (a *Agent) keep(r *Record) error {
	if err := a.store.put(r); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.records[r.key] = r
	if r.Pooled != "" {
		a.handed++
	}
	return nil
}

// Add gives a container its device, for the process pid (0 is this one).
func (a *Agent) Add(pid int, at cni.Attachment, c *cni.Conf) (*types100.Result, error) {
	return a.add(pid, at, c, "")
}

// add is Add for a container that may have a bundle.
func (a *Agent) add(pid int, at cni.Attachment, c *cni.Conf, bundle string) (_ *types100.Result, err error) {
	key := keyOf(c.Name, at.ContainerID, at.IfName)
	defer a.busy.lock(key)()
	if a.record(key) != nil {
		return nil, fmt.Errorf("container %s has its device %s in network %q already", at.ContainerID, at.IfName, c.Name)
	}
	ns, err := netns.Open(seenBy(pid, at.Netns))
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetNS, err.Error(), "")
	}
	defer ns.Close()
	inode, err := inodeOf(ns)
	if err != nil {
		return nil, err
	}
	if inode == a.home {
		return nil, types.NewError(types.ErrInvalidNetNS, fmt.Sprintf("namespace %s is the host's own: want one of the container's", at.Netns), "")
	}
	r := &Record{Network: c.Network, ContainerID: at.ContainerID, IfName: at.IfName, Netns: at.Netns, Number: inode, Bundle: bundle, key: key}
	// A process' file ends with it, but its name in /proc may be another's later.
	if !strings.HasPrefix(at.Netns, "/proc/") && sees(at.Netns, inode) {
		r.Inode = inode
	}
	// A DEL that nobody heard was not of what comes now.
	if err := a.store.forget(key); err != nil {
		return nil, err
	}
	end := a.begin(StageAddCNI, at.ContainerID)
	defer end()
	n := a.networkOf(c)
	err = a.addPooled(n, r, ns, pid, c)
	if in := errInPlace(""); errors.As(err, &in) {
		a.countInPlace(string(in))
		if err != errInPlace(in) {
			a.log.Warn("handing a pooled namespace over", "container", at.ContainerID, "error", err)
		}
		err = a.addInPlace(n, r, ns, at, c)
	}
	if err != nil {
		return nil, err
	}
	return r.Result, nil
}

// begin is a container's entry into a stage, and end its exit.
func (a *Agent) begin(s Stage, container string) (end func()) {
	began := monotonic()
	waited := a.gates.enter(s, container)
	return func() {
		a.gates.leave(s, container)
		a.stages.add(Event{container, s, began, monotonic(), waited.Nanoseconds()})
	}
}

func (a *Agent) countInPlace(why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inPlace[why]++
}

// addInPlace makes the device in the runtime's namespace.
func (a *Agent) addInPlace(n *network, r *Record, ns *os.File, at cni.Attachment, c *cni.Conf) (err error) {
	if devices.HasHost(c.Kind) {
		r.Host = inPlacePrefix + r.key
	}
	if err := a.lease(n, r, at, c); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.unlease(r))
		}
	}()
	step("add-leased")
	where := r.Netns
	if r.Inode == 0 && !strings.HasPrefix(where, "/proc/") {
		where = ns.Name()
	}
	a.own(r.Host, Owner{Netns: where, ContainerID: r.ContainerID})
	defer func() {
		if err != nil {
			a.disown(r.Host)
		}
	}()
	end := a.begin(StageAttachIf, r.ContainerID)
	s := devices.Spec{Conf: c, Netns: ns, Name: r.IfName, Host: r.Host, Leases: r.Leases}
	if r.Host == "" {
		s.Mark = a.alias(r.mark())
	}
	made, err := a.make(n, s)
	end()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.removeDevice(r))
		}
	}()
	step("add-made")
	r.Result = resultOf(c, r, made)
	if err := a.keep(r); err != nil {
		return err
	}
	step("add-kept")
	return nil
}

// Del takes a container's device away; one that is gone is no error.
func (a *Agent) Del(at cni.Attachment, c *cni.Conf) error {
	key := keyOf(c.Name, at.ContainerID, at.IfName)
	defer a.busy.lock(key)()
	if r := a.record(key); r != nil {
		return a.detach(r.of(at, c))
	}
	// One that an ADD left which was cut off before its record.
	if err := a.host.Remove(&c.Network, inPlacePrefix+key); err != nil {
		return err
	}
	if c.IPAM.Type == cni.OwnIPAM {
		return nil
	}
	// An ADD that was cut off may have asked the other plugin for an address.
	return a.unlease(&Record{
		Network: c.Network, ContainerID: at.ContainerID, IfName: at.IfName, Netns: at.Netns, Args: at.Args, CNIPath: c.Path, Conf: c.Raw, key: key,
	})
}

// detach takes an attachment away, its name last. The caller holds its key.
func (a *Agent) detach(r *Record) error {
	step("del-begin")
	if err := a.removeDevice(r); err != nil {
		return err
	}
	step("del-device")
	if err := a.tellDelegate(r); err != nil {
		return err
	}
	step("del-lease")
	if err := a.store.remove(r); err != nil {
		return err
	}
	// Not before: as long as there is a record, the addresses are its own.
	a.release(r)
	a.mu.Lock()
	delete(a.records, r.key)
	a.mu.Unlock()
	a.disown(r.Host)
	step("del-record")
	if r.Pooled == "" {
		return nil
	}
	// Of a container of scon-oci.
	if err := netns.Delete(a.pooledName(r.Pooled)); err != nil && !errors.Is(err, netns.ErrNotExist) {
		return err
	}
	step("del-name")
	return nil
}

// removeDevice takes an attachment's device away: by its end on the host, or in
// the container, if that is still there.
func (a *Agent) removeDevice(r *Record) error {
	if err := a.host.Remove(&r.Network, r.Host); err != nil || devices.HasHost(r.Network.Kind) || r.Netns == "" {
		return err
	}
	return ignoreGone(netns.Do(r.Netns, func() error {
		if now, err := netns.Inode(""); err != nil || r.Number != 0 && now != r.Number {
			return err // the path is another container's by now
		}
		return devices.RemoveInside(r.IfName)
	}))
}

// removeInside takes the device of a pooled namespace away, whoever has that.
func removeInside(path string) error {
	return ignoreGone(netns.Do(path, func() error { return devices.RemoveInside(pooledName) }))
}

// ignoreGone is err unless a namespace is gone.
func ignoreGone(err error) error {
	if errors.Is(err, netns.ErrNotExist) || errors.Is(err, netns.ErrNotNetns) {
		return nil
	}
	return err
}

// GC takes away every attachment of the network that the runtime does not know.
func (a *Agent) GC(c *cni.Conf) error {
	if c.Valid == nil {
		return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("network %q: GC without cni.dev/valid-attachments", c.Name),
			"want the list of attachments to keep, [] to keep none")
	}
	valid := make(map[string]bool)
	for _, v := range c.Valid {
		valid[keyOf(c.Name, v.ContainerID, v.IfName)] = true
	}
	err := a.detachAll(a.attachments(), func(r *Record) bool { return r.Network.Name == c.Name && !valid[r.key] })
	return errors.Join(err, a.askDelegate("GC", c))
}

// attachments are those that there are now.
func (a *Agent) attachments() []*Record {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.records))
}

// detachAll takes those attachments away that doomed names.
func (a *Agent) detachAll(all []*Record, doomed func(*Record) bool) error {
	var errs []error
	hung := make(map[string]bool) // networks whose plugin hung: the next call would, too
	for _, r := range all {
		if !doomed(r) {
			continue
		}
		if hung[r.Network.Name] {
			continue
		}
		unlock := a.busy.lock(r.key)
		if a.record(r.key) == r { // else it has gone, or its like has come again
			err := a.detach(r)
			hung[r.Network.Name] = errors.Is(err, context.DeadlineExceeded)
			errs = append(errs, err)
		}
		unlock()
	}
	return errors.Join(errs...)
}

// Status tells whether an ADD would have what it needs, and whether those that
// had theirs still have a network.
func (a *Agent) Status(c *cni.Conf) error {
	n := a.networkOf(c)
	if err := a.host.CheckShared(&c.Network); err != nil {
		if a.hasContainers(c.Name) {
			return types.NewError(types.ErrLimitedConnectivity, fmt.Sprintf("network %q: its containers are cut off: %v", c.Name, err), "")
		}
		n.unprepare()
	}
	if err := a.prepare(n); err != nil {
		return types.NewError(types.ErrPluginNotAvailable, err.Error(), "")
	}
	if n.space != nil && n.space.Full() && (n.pool == nil || n.pool.Stats().Ready == 0) {
		return types.NewError(types.ErrPluginNotAvailable, fmt.Sprintf("network %q: every address is leased", c.Name), "")
	}
	return a.askDelegate("STATUS", c)
}

// askDelegate passes a verb on that is about no container to the plugin that
// gives addresses, if that is another one.
func (a *Agent) askDelegate(verb string, c *cni.Conf) error {
	if c.IPAM.Type == cni.OwnIPAM {
		return nil
	}
	_, err := cni.Delegate(a.ctx, c.IPAM.Type, cni.Request{Command: verb, Path: c.Path, Input: c.Raw})
	return err
}

func (a *Agent) hasContainers(network string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.records {
		if r.Network.Name == network {
			return true
		}
	}
	return false
}

// inodeOf tells a namespace from others.
func inodeOf(ns *os.File) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(ns.Fd()), &st); err != nil {
		return 0, fmt.Errorf("look at namespace: %w", err)
	}
	return st.Ino, nil
}

// step is a place at which a test ends the process.
var step = func(string) {}

// now is the time; it is not the wall's.
func now() time.Time { return time.Now() }
