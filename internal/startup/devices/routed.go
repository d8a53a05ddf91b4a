package devices

import (
	"errors"
	"net/netip"

	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/internal/startup/cni"
)

// ptp is a veth pair whose host end has the gateway's address: the host routes every
// packet.
type ptp struct{}

func (ptp) routed() bool { return true }

func (ptp) macs(s Spec) Made { return macsOf(s.Leases) }

func (ptp) prepare(*Host, *cni.Conf) error { return nil }

func (ptp) make(h *Host, s Spec, m Made) error {
	if err := h.rt.Do(newLink(pair("veth", s, m, 0))); err != nil {
		return err
	}
	return h.routeTo(s)
}

// routeTo routes the container's addresses to its end on the host, or removes that end
// on error.
func (h *Host) routeTo(s Spec) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, h.rt.Do(delLink(s.Host)))
		}
	}()
	index, err := indexOf(s.Host)
	if err != nil {
		return err
	}
	if err := hostEnd(s.Host, s.Conf); err != nil {
		return err
	}
	var todo []nlmsg.Command
	for _, l := range s.Leases {
		addr := l.Address.Addr()
		if l.Gateway.IsValid() {
			todo = append(todo, newAddr(index, netip.PrefixFrom(l.Gateway, l.Gateway.BitLen())))
		}
		todo = append(todo, newRoute(index, netip.PrefixFrom(addr, addr.BitLen()), netip.Addr{}))
	}
	return h.rt.Do(todo...)
}

// netkit is a pair like ptp's, of the kernel's device kind for containers (since 6.7).
type netkit struct{}

func (netkit) routed() bool { return true }

// macs returns none in mode l3.
func (netkit) macs(s Spec) Made {
	if s.Conf.Mode == "l3" {
		return Made{}
	}
	return macsOf(s.Leases)
}

func (netkit) prepare(*Host, *cni.Conf) error { return nil }

// Attributes and values of IFLA_INFO_DATA, as in linux/if_link.h.
const (
	netkitPeerInfo = 1 // IFLA_NETKIT_PEER_INFO
	netkitMode     = 5 // IFLA_NETKIT_MODE
	netkitL2       = 0
	netkitL3       = 1
)

func (netkit) make(h *Host, s Spec, m Made) error {
	l := pair("netkit", s, m, 0)
	peer := link{name: s.Name, mac: m.MAC, mtu: s.Conf.MTU, netns: s.Netns}
	l.data = func(e *nlmsg.Encoder) {
		mode := uint32(netkitL2)
		if s.Conf.Mode == "l3" {
			mode = netkitL3
		}
		e.Uint32(netkitMode, mode)
		e.Bytes(netkitPeerInfo, peer.encode())
	}
	if err := h.rt.Do(newLink(l)); err != nil {
		return err
	}
	return h.routeTo(s)
}
