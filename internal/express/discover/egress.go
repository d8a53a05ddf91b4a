package discover

import (
	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/tcfilter"
)

// noQueue is the qdisc of a device without traffic shaping.
const noQueue = "noqueue"

// unknown is the revision of programs that were not read.
const unknown = 0

// ShapesEgress reports whether packets for the container must leave by the
// port's egress, because they would skip a qdisc, or filters or programs of
// others there.
func (p Port) ShapesEgress(own tcfilter.Own) (bool, error) {
	if p.Qdisc != noQueue {
		return true, nil
	}
	foreign, err := foreignAt(p.Index, tcfilter.Egress, ebpf.AttachTCXEgress, own)
	return foreign != "", err
}

// NetkitPrograms names a program of others that the host's end of a netkit
// pair runs on packets for the container, "" if there is none.
func (p Port) NetkitPrograms(own tcfilter.Own) (string, error) {
	return firstForeign(p.Index, ebpf.AttachNetkitPrimary, own)
}

// PastNetkit names a program that packets would skip if SCON's program in the
// transmit call of a netkit container sent them to the uplink, "" if there is
// none: one that runs after it there, or one at the port.
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

// Control names the qdisc, filter or program of others that packets pass at a
// device, "" if there is none; qdisc is the kind of its qdisc. Express packets
// of a container do not pass its bridge.
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

// foreignAt names a filter or program of others at one side of a device.
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
