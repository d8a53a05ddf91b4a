package startup

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/devices"
	"github.com/scon-project/scon/internal/startup/ipam"
	"github.com/scon-project/scon/internal/startup/pool"
)

// network is the agent's state of one network.
type network struct {
	conf    *cni.Conf // of the request that created it
	digest  string
	space   *ipam.Space  // nil with another IPAM plugin
	pool    *pool.Pool   // nil without a pool
	waiting atomic.Int32 // containers that wait for an address

	mu       sync.Mutex
	prepared bool
	shared   int        // ifindex of the bridge or master that was prepared
	learned  []ipam.Set // subnets of another IPAM plugin's addresses
}

// networks are those of requests, and those that are prepared on the host, by name. Its lock
// may be taken while a network's is held, and is held while that of records is taken.
type networks struct {
	records  *records
	cooldown time.Duration // of addresses
	newPool  func(*network) *pool.Pool
	log      *slog.Logger

	mu       sync.Mutex
	of       map[string]*network
	prepared map[string]*cni.Conf
	closed   bool
}

func newNetworks(a *Agent) *networks {
	return &networks{
		records: a.records, cooldown: a.opts.Config.AddressCooldown, newPool: a.newPool, log: a.log,
		of: make(map[string]*network), prepared: make(map[string]*cni.Conf),
	}
}

// get returns the network of a request and creates it at the first one. A changed
// configuration creates a new one; attachments of the old one stay.
func (s *networks) get(c *cni.Conf) *network {
	digest := c.Digest()
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.of[c.Name]
	if old != nil && old.digest == digest {
		return old
	}
	n := &network{conf: c, digest: digest}
	if c.IPAM.Type == cni.OwnIPAM {
		n.space = s.spaceOf(c)
	}
	if n.space != nil && !s.closed {
		n.pool = s.newPool(n)
	}
	if old != nil && old.pool != nil {
		go func() {
			if err := old.pool.Close(); err != nil {
				s.log.Error("remove the pool of a network whose configuration changed", "network", c.Name, "error", err)
			}
		}()
	}
	s.of[c.Name] = n
	return n
}

// named returns a network, nil if it is not known.
func (s *networks) named(name string) *network {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[name]
}

func (s *networks) all() []*network {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.of))
}

// close ends the pools.
func (s *networks) close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	var errs []error
	for _, n := range s.all() {
		if n.pool != nil {
			errs = append(errs, n.pool.Close())
		}
	}
	return errors.Join(errs...)
}

// spaceOf returns the addresses that a network leases. Reserved are the addresses of
// its containers, leases in progress under an earlier configuration, and those of
// other networks with overlapping ranges. The caller holds mu.
func (s *networks) spaceOf(c *cni.Conf) *ipam.Space {
	var space *ipam.Space
	old := s.of[c.Name]
	known := old != nil && old.space != nil
	if known {
		space = old.space.With(c.Sets)
	}
	for name, other := range s.of {
		switch {
		case name == c.Name || other.space == nil || !overlap(c, other.conf):
		case space == nil:
			space = other.space.With(c.Sets)
		default: // these two may be no neighbours
			space.Beside(other.space)
		}
	}
	if known {
		return space
	}
	if space == nil {
		space = ipam.New(c.Sets, s.cooldown)
	}
	for _, r := range s.records.all() {
		switch {
		case r.Network.Name == c.Name || r.rebuilt():
			space.Reserve(r.Leases)
		case c.Neighbours(&r.Network):
			space.Reserve(slices.DeleteFunc(slices.Clone(r.Leases), func(l ipam.Lease) bool { return !space.Holds(l) }))
		}
	}
	return space
}

// release returns addresses to the network's own ranges. Addresses of a rebuilt
// record are reserved in every network, those of another network in each neighbour
// whose ranges contain them.
func (s *networks) release(r *Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, n := range s.of {
		foreign := name != r.Network.Name
		if n.space == nil || foreign && !r.rebuilt() && !n.conf.Neighbours(&r.Network) {
			continue
		}
		n.space.Release(slices.DeleteFunc(slices.Clone(r.Leases), func(l ipam.Lease) bool {
			return (foreign || r.rebuilt()) && s.records.leased(name, l)
		}), now())
	}
}

// claim notes that a network is to be prepared. It refuses one whose containers could reach
// those of another tenant's network.
func (s *networks) claim(c *cni.Conf) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, other := range s.prepared {
		if name == c.Name {
			continue
		}
		if err := cni.Apart(c, other); err != nil {
			return err
		}
	}
	s.prepared[c.Name] = c
	return nil
}

// recover takes up a network that an earlier agent prepared, the latest configuration first.
func (s *networks) recover(c *cni.Conf) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.prepared[c.Name] == nil {
		s.prepared[c.Name] = c
	}
}

// onHost returns the configurations of the prepared networks by name.
func (s *networks) onHost() map[string]*cni.Conf {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.prepared)
}

// overlap reports whether two networks could lease the same address to neighbours.
func overlap(a, b *cni.Conf) bool {
	return a.Neighbours(&b.Network) && slices.ContainsFunc(a.Sets, func(s ipam.Set) bool {
		return slices.ContainsFunc(b.Sets, s.Overlaps)
	})
}

// learn adds the subnets of another IPAM plugin's addresses to those to prepare: the
// configuration does not contain them.
func (n *network) learn(leases []ipam.Lease) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range leases {
		r := ipam.Range{Subnet: l.Address.Masked(), Gateway: l.Gateway}
		if r.Gateway.IsValid() && !slices.ContainsFunc(n.learned, func(s ipam.Set) bool { return s[0] == r }) {
			n.learned, n.prepared = append(n.learned, ipam.Set{r}), false
		}
	}
}

// prepare makes what the network's containers share, once for each bridge or master:
// another device with the same name is prepared again.
func (a *Agent) prepare(n *network) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.prepared && n.shared == devices.SharedIndex(&n.conf.Network) {
		return nil
	}
	if err := a.networks.claim(n.conf); err != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("network %q: %v", n.conf.Name, err), "")
	}
	if err := a.store.putNetwork(n.conf); err != nil {
		return err
	}
	if err := a.host.Prepare(n.withLearned()); err != nil {
		return err
	}
	n.prepared, n.shared = true, devices.SharedIndex(&n.conf.Network)
	return nil
}

// make makes a device, whose end on the host has an owner from before it exists; a device
// without such an end has a mark. If the network's host state is missing, it is prepared again.
func (a *Agent) make(n *network, s devices.Spec, o Owner, mark string) (m devices.Made, err error) {
	if s.Host == "" {
		s.Mark = a.home.alias(mark)
	}
	a.owners.set(s.Host, o)
	defer func() {
		if err != nil {
			a.owners.remove(s.Host)
		}
	}()
	for range 2 {
		if err := a.prepare(n); err != nil {
			return m, err
		}
		if m, err = a.host.Make(s); !errors.Is(err, devices.ErrNotPrepared) {
			return m, err
		}
		n.unprepare()
	}
	return m, err
}

// withLearned returns the configuration with the subnets of another IPAM plugin. The
// caller holds mu.
func (n *network) withLearned() *cni.Conf {
	conf := *n.conf
	conf.Sets = slices.Concat(conf.Sets, n.learned)
	return &conf
}

// unprepare makes the next request prepare the network again.
func (n *network) unprepare() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.prepared = false
}
