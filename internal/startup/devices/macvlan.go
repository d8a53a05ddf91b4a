package devices

import (
	"fmt"

	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/internal/startup/cni"
)

// upper is an upper device of one of the host's, its master, which all containers
// of the network share: one vPort per tenant (Understanding Network Startup for Secure
// Containers, figure 4c). It is made in the container and has no end on the host.
type upper struct{ kind string }

func (upper) routed() bool { return false }

// macs leaves the MAC address of ipvlan and ipvtap to the kernel: it is the master's.
func (u upper) macs(s Spec) Made {
	if u.kind == cni.IPvlan || u.kind == cni.IPvtap {
		return Made{}
	}
	return Made{MAC: macsOf(s.Leases).MAC}
}

// prepare brings the master up.
func (upper) prepare(h *Host, c *cni.Conf) error {
	index, err := indexOf(c.Master)
	if err != nil {
		return fmt.Errorf("master: %w", err)
	}
	return h.rt.Do(setUp(c.Master, index))
}

// Attributes of IFLA_INFO_DATA, as in linux/if_link.h.
const (
	macvlanMode = 1 // IFLA_MACVLAN_MODE, 32 bits
	ipvlanMode  = 1 // IFLA_IPVLAN_MODE, 16 bits
)

var (
	macvlanModes = map[string]uint32{"private": 1, "vepa": 2, "bridge": 4, "passthru": 8}
	ipvlanModes  = map[string]uint16{"l2": 0, "l3": 1, "l3s": 2}
)

func (u upper) make(h *Host, s Spec, m Made) error {
	master, err := indexOf(s.Conf.Master)
	if err != nil {
		return fmt.Errorf("%w: %v", ErrNotPrepared, err)
	}
	return h.rt.Do(newLink(link{
		name: s.Name, kind: u.kind, mac: m.MAC, mtu: s.Conf.MTU, lower: master, netns: s.Netns,
		data: func(e *nlmsg.Encoder) {
			if u.kind == cni.IPvlan || u.kind == cni.IPvtap {
				e.Uint16(ipvlanMode, ipvlanModes[s.Conf.Mode])
				return
			}
			e.Uint32(macvlanMode, macvlanModes[s.Conf.Mode])
		},
	}))
}
