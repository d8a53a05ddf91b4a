package startup

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/devices"
	"github.com/scon-project/scon/internal/startup/ipam"
	"github.com/scon-project/scon/internal/startup/pool"
)

// network is what the agent keeps for containers of one network.
type network struct {
	conf   *cni.Conf // of the request that it was made for
	digest string
	space  *ipam.Space  // nil with a delegate
	pool   *pool.Pool   // nil if there is none
	hungry atomic.Int32 // containers that look for an address

	mu       sync.Mutex
	prepared bool
	shared   int        // number of the bridge or master that was prepared
	learned  []ipam.Set // subnets of a delegate
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
		n.space = a.spaceOf(c)
	}
	if n.space != nil && a.opts.Config.Pool.WarmTarget > 0 && !a.closed {
		n.pool = a.newPool(n)
	}
	if old := a.networks[c.Name]; old != nil && old.pool != nil {
		go func() {
			if err := old.pool.Close(); err != nil {
				a.log.Error("taking away the pool of a network that has changed", "network", c.Name, "error", err)
			}
		}()
	}
	a.networks[c.Name] = n
	return n
}

// spaceOf is what a network leases addresses from. Those of its containers are
// taken, and those that are being given to some now, by an earlier
// configuration; so are those of another network, if theirs could be the same.
// The caller holds mu.
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

// overlap tells whether two networks could lease the same address to neighbours.
func overlap(a, b *cni.Conf) bool {
	return a.Neighbours(&b.Network) && slices.ContainsFunc(a.Sets, func(s ipam.Set) bool {
		return slices.ContainsFunc(b.Sets, s.Overlaps)
	})
}

// learn has the subnets of a delegate's addresses prepared, too: no other part of
// the configuration says which they are.
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

// prepare makes what the network's containers share, once for a bridge or
// master: another one under its name has nothing of it.
func (a *Agent) prepare(n *network) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.prepared && n.shared == devices.SharedIndex(&n.conf.Network) {
		return nil
	}
	if err := a.claim(n.conf); err != nil {
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

// claim refuses a network whose containers another one's would reach, of
// another tenant.
func (a *Agent) claim(c *cni.Conf) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, other := range a.claims {
		if name == c.Name {
			continue
		}
		if err := cni.Apart(c, other); err != nil {
			return err
		}
	}
	a.claims[c.Name] = c
	return nil
}

// make makes a device; should what the network needs be gone, it is made anew.
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

// withLearned is the configuration with the subnets of a delegate. The caller
// holds mu.
func (n *network) withLearned() *cni.Conf {
	conf := *n.conf
	conf.Sets = slices.Concat(conf.Sets, n.learned)
	return &conf
}

// unprepare has what the network needs be made anew.
func (n *network) unprepare() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.prepared = false
}
