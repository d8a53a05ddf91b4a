package startup

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/devices"
	"github.com/scon-project/scon/internal/startup/ipam"
	"github.com/scon-project/scon/internal/startup/pool"
)

// pooledName is the name of the device in a pooled namespace, the one that runtimes
// use.
const pooledName = "eth0"

// entry is a prepared namespace.
//
// Only an open file holds it, so it ends with the agent. A mount would hold it as
// well, but is copied into every container created meanwhile: a hundred mounts
// delay the start of fifty containers by 14 %.
type entry struct {
	number string // unique in this agent's namespace, hexadecimal
	ns     *os.File
	host   string
	inode  uint64
	leases []ipam.Lease
	made   devices.Made
	shared int // ifindex of its bridge or master
}

// newPool returns a network's pool.
func (a *Agent) newPool(n *network) *pool.Pool {
	return pool.New(pool.Options{
		Config: a.opts.Config.Pool,
		Logger: a.log,
		Make:   func(empty *os.File) (pool.Namespace, error) { return a.wire(n, "", empty) },
		Drop:   func(e pool.Namespace) error { return a.drop(n, e.(*entry)) },
	})
}

// wire prepares a namespace: it uses the empty one if there is one. If a container
// waits for it, the steps count as its stages.
func (a *Agent) wire(n *network, container string, empty *os.File) (_ *entry, err error) {
	begin := func(s Stage) (end func()) {
		if container == "" {
			return func() {}
		}
		return a.begin(s, container)
	}
	number := make([]byte, 6)
	_, _ = rand.Read(number) // never fails
	e := &entry{number: hex.EncodeToString(number)}
	end := begin(StageNetNS)
	e.ns, err = a.makeNamespace(empty)
	end()
	if err != nil {
		return nil, err
	}
	if devices.HasHost(n.conf.Kind) {
		e.host = pooledPrefix + e.number
	}
	a.owners.set(e.host, Owner{Netns: netns.FdPath(e.ns)})
	defer func() {
		if err != nil {
			a.owners.remove(e.host)
			e.ns.Close()
		}
	}()
	step("pool-begin")
	if container == "" && n.waiting.Load() > 0 {
		return nil, fmt.Errorf("network %q: a container needs its addresses: %w", n.conf.Name, ipam.ErrExhausted)
	}
	if e.leases, err = n.space.Allocate(now()); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			n.space.Release(e.leases, now())
		}
	}()
	if e.inode, err = inodeOf(e.ns); err != nil {
		return nil, err
	}
	s := devices.Spec{Conf: n.conf, Netns: e.ns, Name: pooledName, Host: e.host, Leases: e.leases, Loopback: true}
	if e.host == "" {
		s.Mark = a.alias(pooledMark + e.number)
	}
	end = begin(StageAttachIf)
	e.made, err = a.make(n, s)
	end()
	if err != nil {
		return nil, err
	}
	e.shared = devices.SharedIndex(&n.conf.Network)
	step("pool-made")
	return e, nil
}

// makeNamespace returns the empty namespace if it is unused, else a new one.
func (a *Agent) makeNamespace(empty *os.File) (*os.File, error) {
	if empty != nil {
		defer empty.Close()
		if err := a.isUnused(empty); err == nil {
			return netns.Reopen(empty)
		}
	}
	return netns.New()
}

// drop removes a namespace that no container has. A runtime whose ADD failed may
// still hold it.
func (a *Agent) drop(n *network, e *entry) error {
	err := a.host.Remove(&n.conf.Network, e.host)
	if err == nil && e.host == "" {
		err = removeInside(netns.FdPath(e.ns))
	}
	if err != nil {
		return err
	}
	a.owners.remove(e.host)
	n.space.Release(e.leases, now())
	return e.ns.Close()
}

// take returns the next namespace of the pool, nil if it is empty. It drops
// namespaces whose bridge or master is gone.
func (a *Agent) take(n *network) *entry {
	for {
		taken, ok := n.pool.Take()
		if !ok {
			return nil
		}
		e := taken.(*entry)
		if e.shared == devices.SharedIndex(&n.conf.Network) {
			return e
		}
		n.unprepare()
		if err := a.drop(n, e); err != nil {
			a.log.Error("remove a namespace without its network", "error", err)
		}
	}
}

// errInPlace is the reason why a container gets no pooled namespace.
type errInPlace string

func (e errInPlace) Error() string { return string(e) }

// addPooled replaces the runtime's namespace by a pooled one. The error is errInPlace
// if the device must be made in place.
func (a *Agent) addPooled(n *network, r *Record, ns *os.File, pid int, c *cni.Conf) (err error) {
	if why := a.unswappable(n, r, ns, pid, c); why != "" {
		return errInPlace(why)
	}
	e := a.take(n)
	if e == nil {
		return errInPlace("the pool is empty")
	}
	step("add-taken")
	if err := netns.Replace(r.Netns, e.ns); err != nil {
		return errors.Join(errInPlace("the namespace cannot be replaced"), err, a.drop(n, e))
	}
	step("add-replaced")
	a.hand(r, e, c)
	if err := a.keep(r); err != nil {
		return errors.Join(err, a.drop(n, e))
	}
	step("add-kept")
	e.ns.Close()
	// The runtime's namespace is free now.
	if empty, err := os.Open(netns.FdPath(ns)); err == nil {
		a.tally.noteDisplaced()
		n.pool.Give(empty)
	}
	return nil
}

// hand fills the record of a pooled namespace for a container, at the path where the
// namespace will be.
func (a *Agent) hand(r *Record, e *entry, c *cni.Conf) {
	r.Pooled, r.Host, r.Leases = e.number, e.host, e.leases
	r.Number, r.Inode = e.inode, e.inode
	r.Result = resultOf(c, r, e.made)
	a.owners.set(e.host, Owner{Netns: r.Netns, ContainerID: r.ContainerID})
}

// unswappable returns the reason why a runtime's namespace cannot be replaced, or "".
func (a *Agent) unswappable(n *network, r *Record, ns *os.File, pid int, c *cni.Conf) string {
	switch {
	case n.pool == nil:
		return "there is no pool"
	case c.HandOver == cni.HandOverNone:
		return "handOver is none"
	case c.Bandwidth != nil:
		return "it has a bandwidth of its own"
	case r.IfName != pooledName:
		return "its device has another name than " + pooledName
	case r.Inode == 0:
		return "the agent does not see its namespace, or a process holds it"
	case !a.beneath:
		return "the kernel has no MOVE_MOUNT_BENEATH (6.5)"
	case !sameMounts(pid):
		return "the runtime has other mounts than the agent"
	}
	if owner, err := netns.Owner(ns); err != nil || owner != a.userns {
		return "its namespace belongs to another user namespace"
	}
	if !isEmpty(ns) {
		return "its namespace has devices already"
	}
	if pid, err := a.census.user(r.Number, now()); err != nil || pid != 0 {
		return "a process is in its namespace already" // and would stay in it
	}
	return ""
}

// sameMounts reports whether a process shares the agent's mount namespace.
func sameMounts(pid int) bool {
	if pid <= 0 {
		return true
	}
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return false
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	return err == nil && ours == theirs
}

// isEmpty reports whether a namespace has only the devices that the kernel makes in
// each. It reads a file, since a netlink dump of devices would wait for RTNL, which
// is contended at that time.
func isEmpty(ns *os.File) bool {
	var devices []byte
	err := netns.Do(netns.FdPath(ns), func() (err error) {
		devices, err = os.ReadFile("/proc/thread-self/net/dev")
		return err
	})
	return err == nil && hasOnlyGiven(string(devices))
}

// given are the devices of a new namespace: lo, and one of each kind of tunnel whose
// module is loaded (net.core.fb_tunnels_only_for_init_net).
var given = []string{"lo", "tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0"}

// hasOnlyGiven parses /proc/net/dev: two lines of headings, then "NAME: ...".
func hasOnlyGiven(devices string) bool {
	for i, line := range strings.Split(strings.TrimSuffix(devices, "\n"), "\n") {
		name, _, _ := strings.Cut(strings.TrimSpace(line), ":")
		if i >= 2 && !slices.Contains(given, name) {
			return false
		}
	}
	return true
}

// isUnused returns an error if a displaced namespace has a device or a process.
func (a *Agent) isUnused(ns *os.File) error {
	inode, err := inodeOf(ns)
	if err != nil {
		return err
	}
	if !isEmpty(ns) {
		return errors.New("it has devices")
	}
	pid, err := a.census.user(inode, a.tally.lastDisplaced())
	if err == nil && pid != 0 {
		err = fmt.Errorf("process %d uses it", pid)
	}
	return err
}
