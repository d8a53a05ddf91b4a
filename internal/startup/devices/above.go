package devices

import (
	"fmt"

	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/internal/startup/cni"
)

// above is a device above one of the host's, its master, which all containers
// of the network share: one vPort of a tenant (startup.txt, figure 4c). It is
// made in the container and has no end on the host.
type above struct{ kind string }

func (above) routed() bool { return false }

// macs of ipvlan are the master's.
func (a above) macs(s Spec) Made {
	if a.kind == cni.IPvlan || a.kind == cni.IPvtap {
		return Made{}
	}
	return Made{MAC: macsOf(s.Leases).MAC}
}

// prepare brings the master up.
func (above) prepare(h *Host, c *cni.Conf) error {
	index, err := indexOf(c.Master)
	if err != nil {
		return fmt.Errorf("master: %w", err)
	}
	return h.rt.Do(setUp(index))
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

func (a above) make(h *Host, s Spec, m Made) error {
	master, err := indexOf(s.Conf.Master)
	if err != nil {
		return fmt.Errorf("%w: %v", ErrNotPrepared, err)
	}
	return h.rt.Do(newLink(link{
		name: s.Name, kind: a.kind, mac: m.MAC, mtu: s.Conf.MTU, lower: master, netns: s.Netns,
		data: func(e *nlmsg.Encoder) {
			if a.kind == cni.IPvlan || a.kind == cni.IPvtap {
				e.Uint16(ipvlanMode, ipvlanModes[s.Conf.Mode])
				return
			}
			e.Uint32(macvlanMode, macvlanModes[s.Conf.Mode])
		},
	}))
}
