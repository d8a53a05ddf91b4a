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
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"

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
	opts    Options
	log     *slog.Logger
	host    *devices.Host
	store   *store
	home    namespace
	beneath bool // the kernel can mount beneath a mount

	ctx        context.Context // ends with the agent
	cancel     context.CancelFunc
	background sync.WaitGroup

	// Each of these has its own lock.
	stages   stages
	records  *records
	networks *networks
	census   *census
	plain    plain
	owners   *owners
	starts   starts
	tally    *tally
	guard    guard
}

// New starts an agent and reconciles the kernel's state with the records.
func New(o Options) (_ *Agent, err error) {
	a := &Agent{
		opts: o, log: o.Logger, beneath: netns.HasBeneath(), stages: stages{gates: newGates(o.Config.Limits)},
		census: new(census), owners: newOwners(), tally: newTally(),
		guard: guard{service.NewPulse(), make(chan struct{}, 1)},
	}
	var undo undoList
	defer undo.after(&err)
	a.ctx, a.cancel = context.WithCancel(context.Background())
	undo.with(a.cancel)
	if a.home, err = currentNamespace(); err != nil {
		return nil, err
	}
	if a.store, err = openStore(o.StateDir, a.home.inode, o.Wait); err != nil {
		return nil, err
	}
	undo.with(a.store.close)
	a.records = newRecords(a.store)
	a.networks = newNetworks(a)
	if err := (home{a.home.inode, o.Netns}).write(o.StateDir); err != nil {
		return nil, fmt.Errorf("record the agent's namespace: %w", err)
	}
	if err := leaveLink(o.Socket, o.StateDir); err != nil {
		return nil, err
	}
	if a.host, err = devices.Open(); err != nil {
		return nil, err
	}
	undo.with(a.host.Close)
	if !o.Wait {
		a.census = newCensus(o.Logger)
	}
	undo.with(a.census.close)
	if err := a.recover(); err != nil {
		return nil, err
	}
	if a.stages.stageLog, err = openStageLog(o.Config.StageLog); err != nil {
		return nil, err
	}
	undo.with(a.stages.close)
	if err := a.loadNetworks(); err != nil {
		return nil, err
	}
	a.background.Go(a.reconcile)
	a.background.Go(a.guardRules)
	return a, nil
}

// ReadNetworks reads the networks of the configuration.
func ReadNetworks(c config.Startup) (networks []*cni.Conf, err error) {
	files := make(map[string]string) // by network
	for _, path := range c.Networks {
		n, err := cni.Load(path)
		if err != nil {
			return nil, err
		}
		if other := files[n.Name]; other != "" {
			return nil, fmt.Errorf("startup.networks: %s and %s both configure network %q", other, path, n.Name)
		}
		files[n.Name] = path
		networks = append(networks, n)
	}
	return networks, nil
}

// loadNetworks prepares the networks of the configuration. A network that cannot
// be prepared now is prepared at its first ADD.
func (a *Agent) loadNetworks() error {
	networks, err := ReadNetworks(a.opts.Config)
	for _, c := range networks {
		if err := a.prepare(a.networks.get(c)); err != nil {
			a.log.Warn("prepare a network", "network", c.Name, "error", err)
		}
	}
	return err
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
		if err := a.releaseGone(every); err != nil && a.ctx.Err() == nil {
			a.log.Error("release attachments whose container is gone", "error", err)
		}
		select {
		case <-a.ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Close ends the agent. Attachments stay, with the host state that their networks
// need; everything else is removed.
func (a *Agent) Close() error {
	a.cancel()
	a.background.Wait()
	a.owners.close()
	used := make(map[string]bool)
	for _, r := range a.records.all() {
		used[r.Network.Name] = true
	}
	pending, err := a.store.pendingOf("")
	for _, p := range pending {
		if c, err := cni.Parse(p.Conf); err == nil {
			used[c.Name] = true
		}
	}
	errs := []error{err, a.networks.close()}
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

// Del removes a container's device; a missing device is no error.
func (a *Agent) Del(at cni.Attachment, c *cni.Conf) error {
	asked := newRecord(at, c)
	defer a.records.lock(asked.key)()
	if r := a.records.get(asked.key); r != nil {
		return a.detach(r.of(at, c))
	}
	// An ADD that was interrupted before it wrote a record may have left a device, and an address
	// of another IPAM plugin.
	if err := a.host.Remove(&c.Network, inPlacePrefix+asked.key); err != nil {
		return err
	}
	return a.unlease(asked)
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
	a.networks.release(r)
	a.records.remove(r)
	a.owners.remove(r.Host)
	step("del-record")
	if r.Pooled == "" {
		return nil
	}
	// The name exists for containers of scon-oci.
	if err := netns.Delete(a.home.pooledName(r.Pooled)); err != nil && !errors.Is(err, netns.ErrNotExist) {
		return err
	}
	step("del-name")
	return nil
}

// removeDevice removes an attachment's device: by its end on the host, or inside
// the container if that still exists, or where a process of it has moved the device.
func (a *Agent) removeDevice(r *Record) error {
	if err := a.host.Remove(&r.Network, r.Host); err != nil || devices.HasHost(r.Network.Kind) || r.Netns == "" {
		return err
	}
	moved := false
	err := ignoreGone(netns.Do(r.Netns, func() error {
		if now, err := netns.Inode(""); err != nil || r.Number != 0 && now != r.Number {
			return err // the path now belongs to another container
		}
		_, gone := netlink.LinkByIndex(r.Index)
		moved = r.Index != 0 && gone != nil
		return devices.RemoveInside(r.Index, r.IfName)
	}))
	if !moved {
		return err
	}
	if in, ok := a.home.marked()[r.mark()]; ok {
		err = errors.Join(err, ignoreGone(in.remove()))
	}
	return err
}

// removeInside removes the device in a pooled namespace, whichever container has it.
func removeInside(index int, path string) error {
	return ignoreGone(netns.Do(path, func() error { return devices.RemoveInside(index, pooledName) }))
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
	err := a.detachAll(a.records.all(), func(r *Record) bool { return r.Network.Name == c.Name && !valid[r.key] })
	_, refused := a.delegate("GC", newRecord(cni.Attachment{}, c))
	return errors.Join(err, refused)
}

// detachAll removes the attachments for which doomed returns true.
func (a *Agent) detachAll(all []*Record, doomed func(*Record) bool) error {
	var errs []error
	hung := make(map[string]bool) // networks whose plugin hung: the next call would hang, too
	for _, r := range all {
		if !doomed(r) || hung[r.Network.Name] {
			continue
		}
		unlock := a.records.lock(r.key)
		if a.records.get(r.key) == r { // else it was removed or replaced meanwhile
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
	n := a.networks.get(c)
	if err := a.host.CheckShared(&c.Network); err != nil {
		if a.records.inUse(c.Name) {
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
	_, err := a.delegate("STATUS", newRecord(cni.Attachment{}, c))
	return err
}

// step is a point at which a test may kill the process.
var step = func(string) {}

// now is the monotonic time.
func now() time.Time { return time.Now() }
