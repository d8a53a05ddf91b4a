package discover

import (
	"github.com/cilium/ebpf"

	"github.com/scon-project/scon/internal/tcfilter"
)

// noQueue is the qdisc of a device whose traffic nobody shapes.
const noQueue = "noqueue"

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
	const unknown = 0
	programs, _, err := own.Arranged(ifindex, at, unknown)
	if err != nil {
		return "", err
	}
	for _, p := range programs.Foreign() {
		return p.String(), nil
	}
	return "", nil
}
