package discover

import (
	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/tcfilter"
)

// noQueue is the qdisc of a device whose traffic nobody shapes.
const noQueue = "noqueue"

// unknown is the revision of an arrangement of programs that was not looked at.
const unknown = 0

// ShapesEgress reports whether packets for the container must leave by the
// port's egress, because a qdisc or somebody's filters or programs there would
// be skipped otherwise.
func (p Port) ShapesEgress(own tcfilter.Own) (bool, error) {
	if p.Qdisc != noQueue {
		return true, nil
	}
	foreign, err := foreignAt(p.Index, tcfilter.Egress, ebpf.AttachTCXEgress, own)
	return foreign != "", err
}

// NetkitPrograms names a program of somebody else that the end on the host of a
// netkit pair runs on packets for the container, "" if there is none.
func (p Port) NetkitPrograms(own tcfilter.Own) (string, error) {
	return firstForeign(p.Index, ebpf.AttachNetkitPrimary, own)
}

// PastNetkit says who would miss packets that SCON's program in the transmit call
// of a netkit container sends to the uplink, "" if nobody: a program behind it
// there, or one at the port.
func (p Port) PastNetkit(own tcfilter.Own) (string, error) {
	there, _, err := own.Arranged(p.Index, ebpf.AttachNetkitPeer, unknown)
	if err != nil {
		return "", err
	}
	for _, behind := range there.After {
		return behind.String(), nil
	}
	foreign, err := firstForeign(p.Index, ebpf.AttachTCXIngress, own)
	if foreign != "" || err != nil {
		return foreign, err
	}
	l, err := netlink.LinkByIndex(p.Index)
	if err == nil && l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached {
		return "an XDP program", nil
	}
	return "", err
}

// Control says what at a device packets would meet that pass it, with the kind
// of its qdisc, "" if nothing. Express packets of a container do not pass its
// bridge.
func Control(ifindex int, qdisc string, own tcfilter.Own) (string, error) {
	if qdisc != "" && qdisc != noQueue {
		return "qdisc " + qdisc, nil
	}
	foreign, err := foreignAt(ifindex, tcfilter.Ingress, ebpf.AttachTCXIngress, own)
	if foreign != "" || err != nil {
		return foreign, err
	}
	return foreignAt(ifindex, tcfilter.Egress, ebpf.AttachTCXEgress, own)
}

// foreignAt names a filter or a program of somebody else at one side of a
// device.
func foreignAt(ifindex int, list func(ifindex int) ([]tcfilter.Filter, error), at ebpf.AttachType, own tcfilter.Own) (string, error) {
	filters, err := list(ifindex)
	if err != nil {
		return "", err
	}
	for _, f := range filters {
		if !f.Own() {
			return f.String(), nil
		}
	}
	return firstForeign(ifindex, at, own)
}

func firstForeign(ifindex int, at ebpf.AttachType, own tcfilter.Own) (string, error) {
	programs, _, err := own.Arranged(ifindex, at, unknown)
	if err != nil {
		return "", err
	}
	for _, p := range programs.Foreign() {
		return p.String(), nil
	}
	return "", nil
}
