// Package startup gives containers their network as fast as they start without
// one (startup.txt). Its agent answers CNI's verbs and the OCI wrapper; it owns
// leases and the pool of wired namespaces, and nothing that it made outlives
// its attachment:
//
//   - a pooled namespace has a name in /run/netns before anything is in it, and
//     until everything else is gone
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
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/cni"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/ipam"
	"github.com/scon-project/scon/internal/netns"
	"github.com/scon-project/scon/internal/primary"
)

// Options say where and how an agent works.
type Options struct {
	Config   config.Startup
	StateDir string
	Netns    string // as given by --netns, for those who work without an agent
	Logger   *slog.Logger
	// Named is told which container is behind a device of the host. It may be
	// nil.
	Named func(host, containerID string)
	// Wait for another agent that works in StateDir, instead of ErrBusy.
	Wait bool
}

// Agent gives containers of one network namespace, in which its process lives,
// their devices. It is safe for concurrent use.
type Agent struct {
	opts  Options
	log   *slog.Logger
	host  *primary.Host
	store *store
	home  uint64 // inode of the agent's namespace

	busy keyed // attachments at work

	mu       sync.Mutex
	networks map[string]*network // by name
	records  map[string]*Record  // by key
}

// New starts an agent and brings the kernel's state and the records together.
func New(o Options) (_ *Agent, err error) {
	a := &Agent{opts: o, log: o.Logger, networks: make(map[string]*network), records: make(map[string]*Record)}
	if a.home, err = netns.Inode(""); err != nil {
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
	if a.host, err = primary.Open(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			a.host.Close()
		}
	}()
	if err := a.recover(); err != nil {
		return nil, err
	}
	return a, nil
}

// Close ends the agent. Attachments stay.
func (a *Agent) Close() {
	a.host.Close()
	a.store.close()
}

// network is what the agent keeps for containers of one network.
type network struct {
	conf   *cni.Conf // of the request that it was made for
	digest string
	space  *ipam.Space // nil with a delegate

	mu       sync.Mutex
	prepared bool
}

// networkOf is the network of a request, made if it is the first one. One whose
// configuration has changed is made anew: what is there of it stays.
func (a *Agent) networkOf(c *cni.Conf) *network {
	digest := c.Digest()
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.networks[c.Name]
	if n != nil && n.digest == digest {
		return n
	}
	n = &network{conf: c, digest: digest}
	if c.IPAM.Type == cni.OwnIPAM {
		n.space = ipam.New(c.Sets, a.opts.Config.AddressCooldown)
		for _, r := range a.records {
			if r.Network.Name == c.Name || r.Network.Name == unknownNetwork {
				n.space.Reserve(r.Leases)
			}
		}
	}
	a.networks[c.Name] = n
	return n
}

// prepare makes what the network's containers share, once.
func (a *Agent) prepare(n *network) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.prepared {
		return nil
	}
	if err := a.host.Prepare(n.conf); err != nil {
		return err
	}
	n.prepared = true
	return nil
}

// make makes a device; should what the network needs be gone, it is made anew.
func (a *Agent) make(n *network, s primary.Spec) (m primary.Made, err error) {
	for range 2 {
		if err := a.prepare(n); err != nil {
			return m, err
		}
		if m, err = a.host.Make(s); !errors.Is(err, primary.ErrNotPrepared) {
			return m, err
		}
		n.mu.Lock()
		n.prepared = false
		n.mu.Unlock()
	}
	return m, err
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
	return nil
}

// Add gives a container its device, for the process pid (0 is this one).
func (a *Agent) Add(ctx context.Context, pid int, at cni.Attachment, c *cni.Conf) (_ *types100.Result, err error) {
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
	r := &Record{Network: c.Network, ContainerID: at.ContainerID, IfName: at.IfName, Netns: at.Netns, key: key}
	// A process' file ends with it, but its name in /proc may be another's later.
	if !strings.HasPrefix(at.Netns, "/proc/") && sees(at.Netns, inode) {
		r.Inode = inode
	}
	if err := a.addInPlace(r, ns, at, c); err != nil {
		return nil, err
	}
	if a.opts.Named != nil {
		a.opts.Named(r.Host, r.ContainerID)
	}
	return r.Result, nil
}

// addInPlace makes the device in the runtime's namespace.
func (a *Agent) addInPlace(r *Record, ns *os.File, at cni.Attachment, c *cni.Conf) (err error) {
	n := a.networkOf(c)
	r.Host = inPlacePrefix + r.key
	if err := a.lease(n, r, at, c); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.unlease(r))
		}
	}()
	step("add-leased")
	made, err := a.make(n, primary.Spec{Conf: c, Netns: ns, Name: r.IfName, Host: r.Host, Leases: r.Leases})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.host.Remove(r.Host))
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
func (a *Agent) Del(ctx context.Context, at cni.Attachment, c *cni.Conf) error {
	key := keyOf(c.Name, at.ContainerID, at.IfName)
	defer a.busy.lock(key)()
	r := a.record(key)
	if r == nil {
		return nil
	}
	return a.detach(r)
}

// detach takes an attachment away, its name last. The caller holds its key.
func (a *Agent) detach(r *Record) error {
	step("del-begin")
	if err := a.host.Remove(r.Host); err != nil {
		return err
	}
	step("del-device")
	if err := a.unlease(r); err != nil {
		return err
	}
	step("del-lease")
	if err := a.store.remove(r); err != nil {
		return err
	}
	a.mu.Lock()
	delete(a.records, r.key)
	a.mu.Unlock()
	step("del-record")
	return nil
}

// GC takes away every attachment of the network that the runtime does not know.
func (a *Agent) GC(c *cni.Conf) error {
	valid := make(map[string]bool)
	for _, v := range c.Valid {
		valid[keyOf(c.Name, v.ContainerID, v.IfName)] = true
	}
	return a.detachAll(func(r *Record) bool { return r.Network.Name == c.Name && !valid[r.key] })
}

// detachAll takes away the attachments that doomed names.
func (a *Agent) detachAll(doomed func(*Record) bool) error {
	a.mu.Lock()
	var keys []string
	for key, r := range a.records {
		if doomed(r) {
			keys = append(keys, key)
		}
	}
	a.mu.Unlock()
	var errs []error
	for _, key := range keys {
		unlock := a.busy.lock(key)
		if r := a.record(key); r != nil {
			errs = append(errs, a.detach(r))
		}
		unlock()
	}
	return errors.Join(errs...)
}

// Status tells whether an ADD would have what it needs.
func (a *Agent) Status(c *cni.Conf) error {
	n := a.networkOf(c)
	if err := a.prepare(n); err != nil {
		return types.NewError(types.ErrPluginNotAvailable, err.Error(), "")
	}
	if n.space != nil && n.space.Full() {
		return types.NewError(types.ErrPluginNotAvailable, fmt.Sprintf("network %q: every address is leased", c.Name), "")
	}
	return nil
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
