package startup

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/host/sysctl"
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

// newPool returns a network's pool, nil if the settings want none.
func (a *Agent) newPool(n *network) *pool.Pool {
	if a.opts.Config.Pool.WarmTarget == 0 {
		return nil
	}
	return pool.New(pool.Options{
		Config: a.opts.Config.Pool,
		Logger: a.log,
		Make:   func() (pool.Namespace, error) { return a.wire(n, "") },
		Drop:   func(e pool.Namespace) error { return a.drop(n, e.(*entry)) },
	})
}

// wire prepares a new namespace. One that a pooled one has replaced is not used again: its
// runtime may have changed anything in it. If a container waits for it, the steps count as its
// stages.
func (a *Agent) wire(n *network, container string) (_ *entry, err error) {
	var undo undoList
	defer undo.after(&err)
	number := make([]byte, 6)
	_, _ = rand.Read(number) // never fails
	e := &entry{number: hex.EncodeToString(number)}
	if devices.HasHost(n.conf.Kind) {
		e.host = pooledPrefix + e.number
	}
	end := a.stages.begin(StageNetNS, container)
	e.ns, err = netns.New()
	end()
	if err != nil {
		return nil, err
	}
	undo.by(e.ns.Close)
	step("pool-begin")
	if container == "" && n.waiting.Load() > 0 {
		return nil, fmt.Errorf("network %q: a container needs its addresses: %w", n.conf.Name, ipam.ErrExhausted)
	}
	if e.leases, err = n.space.Allocate(now()); err != nil {
		return nil, err
	}
	undo.with(func() { n.space.Release(e.leases, now()) })
	if e.inode, err = inodeOf(e.ns); err != nil {
		return nil, err
	}
	end = a.stages.begin(StageAttachIf, container)
	s := devices.Spec{Conf: n.conf, Netns: e.ns, Name: pooledName, Host: e.host, Leases: e.leases, Loopback: true}
	e.made, err = a.make(n, s, Owner{Netns: netns.FdPath(e.ns)}, pooledMark+e.number)
	end()
	if err != nil {
		return nil, err
	}
	e.shared = devices.SharedIndex(&n.conf.Network)
	step("pool-made")
	return e, nil
}

// drop removes a namespace that no container has. A runtime whose ADD failed may
// still hold it.
func (a *Agent) drop(n *network, e *entry) error {
	err := a.host.Remove(&n.conf.Network, e.host)
	if err == nil && e.host == "" {
		err = removeInside(e.made.Index, netns.FdPath(e.ns))
	}
	if err != nil {
		return err
	}
	a.owners.remove(e.host)
	n.space.Release(e.leases, now())
	return e.ns.Close()
}

// take returns the next namespace of the pool, nil if it is empty. It drops
// namespaces whose bridge or master, or end on the host, is gone or down.
func (a *Agent) take(n *network) *entry {
	for a.prepare(n) == nil {
		taken, ok := n.pool.Take()
		if !ok {
			return nil
		}
		e := taken.(*entry)
		if e.shared == devices.SharedIndex(&n.conf.Network) && (e.host == "" || devices.IsUp(e.host)) {
			return e
		}
		if err := a.drop(n, e); err != nil {
			a.log.Error("remove a namespace without its network", "error", err)
		}
	}
	return nil
}

// give fills the record of a pooled namespace for a container, at the path where the
// namespace will be.
func (a *Agent) give(e *entry, r *Record, c *cni.Conf) {
	r.Pooled, r.Host, r.Leases = e.number, e.host, e.leases
	r.Number, r.Inode, r.Index = e.inode, e.inode, e.made.Index
	r.Result = resultOf(c, r, e.made)
	a.owners.set(e.host, Owner{Netns: r.Netns, ContainerID: r.ContainerID})
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

// plain knows the settings of a new namespace.
type plain struct {
	mu       sync.Mutex
	settings string
	read     time.Time // when they were
}

// plainAge is how long a namespace that differs is compared with the settings that were read
// last: the host may change what it passes on.
const plainAge = time.Second

// has reports whether a namespace has those settings. CRI-O sets a pod's sysctls before the
// ADD: the pooled namespace would lack them.
func (p *plain) has(ns *os.File) bool {
	there, err := settingsOf(ns)
	if err != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if there == p.settings || time.Since(p.read) < plainAge {
		return there == p.settings
	}
	fresh, err := netns.New()
	if err != nil {
		return false
	}
	defer fresh.Close()
	p.settings, err = settingsOf(fresh)
	p.read = time.Now()
	return err == nil && there == p.settings
}

// settings are those that Kubernetes lets every pod set, and others that pods often have.
var settings = []string{
	"net/core/somaxconn", "net/ipv4/conf/all/arp_ignore", "net/ipv4/conf/all/route_localnet", "net/ipv4/conf/all/rp_filter",
	"net/ipv4/ip_forward", "net/ipv4/ip_local_port_range", "net/ipv4/ip_local_reserved_ports", "net/ipv4/ip_nonlocal_bind",
	"net/ipv4/ip_unprivileged_port_start", "net/ipv4/ping_group_range", "net/ipv4/tcp_congestion_control",
	"net/ipv4/tcp_fin_timeout", "net/ipv4/tcp_keepalive_intvl", "net/ipv4/tcp_keepalive_probes", "net/ipv4/tcp_keepalive_time",
	"net/ipv4/tcp_rmem", "net/ipv4/tcp_syncookies", "net/ipv4/tcp_tw_reuse", "net/ipv4/tcp_wmem",
	"net/ipv6/conf/all/disable_ipv6", "net/ipv6/conf/all/forwarding",
}

// settingsOf returns the values of these settings in a namespace.
func settingsOf(ns *os.File) (values string, err error) {
	r := sysctl.NewReader()
	defer r.Close()
	err = netns.Do(netns.FdPath(ns), func() error {
		for _, name := range settings {
			value, _ := r.Read(name) // the kernel may lack it
			values += value + "\n"
		}
		return nil
	})
	return values, err
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
