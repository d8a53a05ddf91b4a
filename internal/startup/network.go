package startup

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

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

// networkOf returns the network of a request and creates it at the first one. A
// changed configuration creates a new one; attachments of the old one stay.
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
		n.space = a.spaceOf(c)
	}
	if n.space != nil && a.opts.Config.Pool.WarmTarget > 0 && !a.closed {
		n.pool = a.newPool(n)
	}
	if old := a.networks[c.Name]; old != nil && old.pool != nil {
		go func() {
			if err := old.pool.Close(); err != nil {
				a.log.Error("remove the pool of a network whose configuration changed", "network", c.Name, "error", err)
			}
		}()
	}
	a.networks[c.Name] = n
	return n
}

// spaceOf returns the addresses that a network leases. Reserved are the addresses of
// its containers, leases in progress under an earlier configuration, and those of
// other networks with overlapping ranges. The caller holds mu.
func (a *Agent) spaceOf(c *cni.Conf) *ipam.Space {
	if old := a.networks[c.Name]; old != nil && old.space != nil {
		return old.space.With(c.Sets)
	}
	s := ipam.New(c.Sets, a.opts.Config.AddressCooldown)
	for _, other := range a.networks {
		if other.space != nil && overlap(c, other.conf) {
			s = other.space.With(c.Sets)
			break
		}
	}
	for _, r := range a.records {
		switch {
		case r.Network.Name == c.Name || r.rebuilt():
			s.Reserve(r.Leases)
		case c.Neighbours(&r.Network):
			s.Reserve(slices.DeleteFunc(slices.Clone(r.Leases), func(l ipam.Lease) bool { return !s.Holds(l) }))
		}
	}
	return s
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
	if err := a.claims.add(n.conf); err != nil {
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

// claims are the networks that are prepared on the host.
type claims struct {
	mu sync.Mutex
	of map[string]*cni.Conf // by name
}

func newClaims() *claims { return &claims{of: make(map[string]*cni.Conf)} }

// add refuses a network whose containers could reach those of another tenant's
// network.
func (s *claims) add(c *cni.Conf) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, other := range s.of {
		if name == c.Name {
			continue
		}
		if err := cni.Apart(c, other); err != nil {
			return err
		}
	}
	s.of[c.Name] = c
	return nil
}

// recover takes up a network that an earlier agent prepared, the latest configuration first.
func (s *claims) recover(c *cni.Conf) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[c.Name] == nil {
		s.of[c.Name] = c
	}
}

// all returns the configurations by name.
func (s *claims) all() map[string]*cni.Conf {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.of)
}

// make makes a device. If the network's host state is missing, it is prepared again.
func (a *Agent) make(n *network, s devices.Spec) (m devices.Made, err error) {
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
