package startup

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/scon-project/scon/internal/cni"
	"github.com/scon-project/scon/internal/ipam"
	"github.com/scon-project/scon/internal/pool"
	"github.com/scon-project/scon/internal/primary"
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

// prepare makes what the network's containers share, once.
func (a *Agent) prepare(n *network) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.prepared {
		return nil
	}
	if err := a.claim(n.conf); err != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("network %q: %v", n.conf.Name, err), "")
	}
	if err := a.store.putNetwork(n.conf); err != nil {
		return err
	}
	if err := a.host.Prepare(n.conf); err != nil {
		return err
	}
	n.prepared = true
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
func (a *Agent) make(n *network, s primary.Spec) (m primary.Made, err error) {
	for range 2 {
		if err := a.prepare(n); err != nil {
			return m, err
		}
		if m, err = a.host.Make(s); !errors.Is(err, primary.ErrNotPrepared) {
			return m, err
		}
		n.unprepare()
	}
	return m, err
}

// unprepare has what the network needs be made anew.
func (n *network) unprepare() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.prepared = false
}
