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
	if err := h.rt.Do(vethPair(s.ends(m, 0))); err != nil {
		return err
	}
	return h.routeTo(s)
}

// routeTo routes the container's addresses to its end on the host, or removes that end
// on error.
func (h *Host) routeTo(s Spec) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, h.RemoveLink(s.Host))
		}
	}()
	index, err := indexOf(s.Host)
	if err != nil {
		return err
	}
	if err := hostEndOf(s.Conf).set(s.Host); err != nil {
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

func (netkit) make(h *Host, s Spec, m Made) error {
	mode := uint32(netkitL2)
	if s.Conf.Mode == "l3" {
		mode = netkitL3
	}
	host, inner := s.ends(m, 0)
	if err := h.rt.Do(netkitPair(host, inner, mode)); err != nil {
		return err
	}
	return h.routeTo(s)
}
