// Package startup makes containers' networks without delaying their start
// (Understanding Network Startup for Secure Containers). Its agent answers CNI's
// verbs and the OCI wrapper, and owns the address leases and the pool of prepared
// namespaces. Nothing that it makes outlives its attachment:
//
//   - only the agent holds a pooled namespace until a container gets it
//   - a device in a runtime's namespace carries its attachment's key in the name
//     of its end on the host
//   - a record is written at the end of an ADD and removed at the end of a DEL
//
// When the agent starts, it removes everything in the kernel that has no record.
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

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/service"
	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/devices"
)

// Options configure an agent.
type Options struct {
	Config   config.Startup
	StateDir string
	Socket   string // where clients connect; "" in a process that replaces the agent
	Netns    string // as given by --netns, for processes that replace the agent
	Logger   *slog.Logger
	// Wait for another process that uses StateDir, instead of returning ErrBusy.
	Wait bool
}

// Agent makes the devices of containers whose host ends are in one network
// namespace, that of its process. It is safe for concurrent use.
type Agent struct {
	opts  Options
	log   *slog.Logger
	host  *devices.Host
	store *store
	home  uint64 // inode of the agent's namespace
	// userns is the inode of the user namespace that owns home.
	userns  uint64
	beneath bool // the kernel can mount beneath a mount

	ctx        context.Context // ends with the agent
	cancel     context.CancelFunc
	pulse      *service.Pulse // of guardRules
	rules      chan struct{}  // signals that rules have changed
	background sync.WaitGroup

	gates  *gates
	stages *stageLog
	busy   keyedMutex // held by the request of an attachment
	census *census
	owners *owners
	claims *claims
	starts *starts
	tally  *tally

	mu       sync.Mutex
	networks map[string]*network // by name
	records  map[string]*Record  // by key
	closed   bool
}

// New starts an agent and reconciles the kernel's state with the records.
func New(o Options) (_ *Agent, err error) {
	a := &Agent{
		opts: o, log: o.Logger, gates: newGates(o.Config.Limits), beneath: netns.HasBeneath(),
		networks: make(map[string]*network), records: make(map[string]*Record),
		owners: newOwners(), claims: newClaims(), starts: newStarts(), tally: newTally(),
		pulse: service.NewPulse(), rules: make(chan struct{}, 1),
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
		return nil, fmt.Errorf("record the agent's namespace: %w", err)
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

// loadNetworks prepares the networks of the configuration. A network that cannot
// be prepared now is prepared at its first ADD.
func (a *Agent) loadNetworks() error {
	files := make(map[string]string) // by network
	for _, path := range a.opts.Config.Networks {
		c, err := cni.Load(path)
		if err != nil {
			return err
		}
		if other := files[c.Name]; other != "" {
			return fmt.Errorf("startup.networks: %s and %s both configure network %q", other, path, c.Name)
		}
		files[c.Name] = path
		if err := a.prepare(a.networkOf(c)); err != nil {
			a.log.Warn("prepare a network", "file", path, "error", err)
		}
	}
	return nil
}

// reconcileInterval is how often the agent searches for containers that ended without
// a DEL.
var reconcileInterval = 30 * time.Second

// reconcile releases their attachments until the agent ends. It runs once at the
// start: recovery leaves it the attachments whose IPAM plugin must be called, since
// that may hang.
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

// guardRules restores the agent's rules until the agent ends.
func (a *Agent) guardRules() {
	tick := time.NewTicker(reconcileInterval)
	defer tick.Stop()
	beat := time.NewTicker(service.PulseInterval)
	defer beat.Stop()
	var soon <-chan time.Time
	var checked time.Time
	for {
		a.pulse.Beat()
		select {
		case <-beat.C:
			continue
		case <-a.ctx.Done():
			return
		case <-tick.C:
		case <-a.rules:
			if soon == nil {
				soon = time.After(time.Until(checked.Add(lull)))
			}
			continue
		case <-soon:
		}
		soon = nil
		if err := a.keepRules(); err != nil {
			a.log.Error("restore missing rules", "error", err)
		}
		checked = time.Now()
	}
}

// findHome sets the inode and the owner of the agent's namespace.
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

// Close ends the agent. Attachments stay, with the host state that their networks
// need; everything else is removed.
func (a *Agent) Close() error {
	a.cancel()
	a.background.Wait()
	a.owners.close()
	a.mu.Lock()
	a.closed = true
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

// removeUnused removes the host state of networks without containers.
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

// keep writes a record: it makes the attachment exist.
func (a *Agent) keep(r *Record) error {
	if err := a.store.put(r); err != nil {
		return err
	}
	if r.Pooled != "" {
		a.tally.countHanded()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.records[r.key] = r
	return nil
}

// Add makes a container's device, for the process pid (0 is this one).
func (a *Agent) Add(pid int, at cni.Attachment, c *cni.Conf) (*types100.Result, error) {
	return a.add(pid, at, c, "")
}

// add is Add; bundle is "" for a container without an OCI bundle.
func (a *Agent) add(pid int, at cni.Attachment, c *cni.Conf, bundle string) (_ *types100.Result, err error) {
	key := keyOf(c.Name, at.ContainerID, at.IfName)
	defer a.busy.lock(key)()
	if a.record(key) != nil {
		return nil, fmt.Errorf("container %s already has device %s in network %q", at.ContainerID, at.IfName, c.Name)
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
		return nil, types.NewError(types.ErrInvalidNetNS, fmt.Sprintf("namespace %s is the host's: want a container's namespace", at.Netns), "")
	}
	r := &Record{Network: c.Network, ContainerID: at.ContainerID, IfName: at.IfName, Netns: at.Netns, Number: inode, Bundle: bundle, key: key}
	// A path in /proc ends with its process, and its number may be reused.
	if !strings.HasPrefix(at.Netns, "/proc/") && sees(at.Netns, inode) {
		r.Inode = inode
	}
	// A DEL recorded without the agent does not apply to the new attachment.
	if err := a.store.forget(key); err != nil {
		return nil, err
	}
	end := a.begin(StageAddCNI, at.ContainerID)
	defer end()
	n := a.networkOf(c)
	err = a.addPooled(n, r, ns, pid, c)
	if in := errInPlace(""); errors.As(err, &in) {
		a.tally.countInPlace(string(in))
		if err != errInPlace(in) {
			a.log.Warn("hand over a pooled namespace", "container", at.ContainerID, "error", err)
		}
		err = a.addInPlace(n, r, ns, at, c)
	}
	if err != nil {
		return nil, err
	}
	return r.Result, nil
}

// begin enters a stage for a container; end leaves it.
func (a *Agent) begin(s Stage, container string) (end func()) {
	began := monotonic()
	waited := a.gates.enter(s, container)
	return func() {
		a.gates.leave(s, container)
		a.stages.add(Event{container, s, began, monotonic(), waited.Nanoseconds()})
	}
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
	a.owners.set(r.Host, Owner{Netns: where, ContainerID: r.ContainerID})
	defer func() {
		if err != nil {
			a.owners.remove(r.Host)
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

// Del removes a container's device; a missing device is no error.
func (a *Agent) Del(at cni.Attachment, c *cni.Conf) error {
	key := keyOf(c.Name, at.ContainerID, at.IfName)
	defer a.busy.lock(key)()
	if r := a.record(key); r != nil {
		return a.detach(r.of(at, c))
	}
	// An ADD that was interrupted before it wrote a record may have left a device.
	if err := a.host.Remove(&c.Network, inPlacePrefix+key); err != nil {
		return err
	}
	if c.IPAM.Type == cni.OwnIPAM {
		return nil
	}
	// An interrupted ADD may have obtained an address from the IPAM plugin.
	return a.unlease(&Record{
		Network: c.Network, ContainerID: at.ContainerID, IfName: at.IfName, Netns: at.Netns, Args: at.Args, CNIPath: c.Path, Conf: c.Raw, key: key,
	})
}

// detach removes an attachment, its name last. The caller holds its key.
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
	// While the record exists, the addresses belong to it.
	a.release(r)
	a.mu.Lock()
	delete(a.records, r.key)
	a.mu.Unlock()
	a.owners.remove(r.Host)
	step("del-record")
	if r.Pooled == "" {
		return nil
	}
	// The name exists for containers of scon-oci.
	if err := netns.Delete(a.pooledName(r.Pooled)); err != nil && !errors.Is(err, netns.ErrNotExist) {
		return err
	}
	step("del-name")
	return nil
}

// removeDevice removes an attachment's device: by its end on the host, or inside
// the container if that still exists.
func (a *Agent) removeDevice(r *Record) error {
	if err := a.host.Remove(&r.Network, r.Host); err != nil || devices.HasHost(r.Network.Kind) || r.Netns == "" {
		return err
	}
	return ignoreGone(netns.Do(r.Netns, func() error {
		if now, err := netns.Inode(""); err != nil || r.Number != 0 && now != r.Number {
			return err // the path now belongs to another container
		}
		return devices.RemoveInside(r.IfName)
	}))
}

// removeInside removes the device in a pooled namespace, whichever container has it.
func removeInside(path string) error {
	return ignoreGone(netns.Do(path, func() error { return devices.RemoveInside(pooledName) }))
}

// ignoreGone returns err unless it says that a namespace is gone.
func ignoreGone(err error) error {
	if errors.Is(err, netns.ErrNotExist) || errors.Is(err, netns.ErrNotNetns) {
		return nil
	}
	return err
}

// GC removes the attachments of the network that the runtime does not list.
func (a *Agent) GC(c *cni.Conf) error {
	if c.Valid == nil {
		return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("network %q: GC without cni.dev/valid-attachments", c.Name),
			"want the attachments to keep, [] to keep none")
	}
	valid := make(map[string]bool)
	for _, v := range c.Valid {
		valid[keyOf(c.Name, v.ContainerID, v.IfName)] = true
	}
	err := a.detachAll(a.attachments(), func(r *Record) bool { return r.Network.Name == c.Name && !valid[r.key] })
	return errors.Join(err, a.askDelegate("GC", c))
}

// attachments returns the current attachments.
func (a *Agent) attachments() []*Record {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.records))
}

// detachAll removes the attachments for which doomed returns true.
func (a *Agent) detachAll(all []*Record, doomed func(*Record) bool) error {
	var errs []error
	hung := make(map[string]bool) // networks whose plugin hung: the next call would hang, too
	for _, r := range all {
		if !doomed(r) {
			continue
		}
		if hung[r.Network.Name] {
			continue
		}
		unlock := a.busy.lock(r.key)
		if a.record(r.key) == r { // else it was removed or replaced meanwhile
			err := a.detach(r)
			hung[r.Network.Name] = errors.Is(err, context.DeadlineExceeded)
			errs = append(errs, err)
		}
		unlock()
	}
	return errors.Join(errs...)
}

// Status reports whether an ADD would succeed and existing attachments still have
// their network.
func (a *Agent) Status(c *cni.Conf) error {
	n := a.networkOf(c)
	if err := a.host.CheckShared(&c.Network); err != nil {
		if a.hasContainers(c.Name) {
			return types.NewError(types.ErrLimitedConnectivity, fmt.Sprintf("network %q: its containers are disconnected: %v", c.Name, err), "")
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

// askDelegate passes a verb without a container to the IPAM plugin, unless that is
// our own.
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

// inodeOf returns the inode of a namespace, which identifies it.
func inodeOf(ns *os.File) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(ns.Fd()), &st); err != nil {
		return 0, fmt.Errorf("stat namespace: %w", err)
	}
	return st.Ino, nil
}

// step is a point at which a test may kill the process.
var step = func(string) {}

// now is the monotonic time.
func now() time.Time { return time.Now() }
