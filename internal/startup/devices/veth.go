package devices

import (
	"fmt"

	"github.com/scon-project/scon/internal/host/netdev"
	"github.com/scon-project/scon/internal/startup/cni"
)

// veth is a pair whose host end is a port of a bridge.
type veth struct{}

func (veth) routed() bool { return false }

func (veth) macs(s Spec) Made { return macsOf(s.Leases) }

func (veth) prepare(h *Host, c *cni.Conf) error {
	b := Bridge{Name: c.Bridge, MAC: netdev.RandomMAC(), MTU: c.MTU, Alias: madeBySCON, HostEnd: hostEndOf(c)}
	if c.IsGateway {
		b.Addresses = gateways(c)
	}
	return h.MakeBridge(b)
}

func (veth) unprepare(h *Host, c *cni.Conf) error { return h.removeBridge(c.Bridge) }

func (veth) make(h *Host, s Spec, m Made) error {
	bridge, err := indexOf(s.Conf.Bridge)
	if err != nil {
		return fmt.Errorf("%w: %v", ErrNotPrepared, err)
	}
	return h.rt.Do(vethPair(s.ends(m, bridge)))
}

// madeBySCON is the alias of bridges that SCON made, and removes with the last
// container.
const madeBySCON = "made by scon for its containers"
