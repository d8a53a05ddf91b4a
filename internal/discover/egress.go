package discover

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/tcfilter"
)

// ShapesEgress reports whether packets for a container must leave by its port's
// egress, because a qdisc or somebody's filters there would be skipped
// otherwise.
func ShapesEgress(ifindex int) (bool, error) {
	port, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return false, fmt.Errorf("look at device %d: %w", ifindex, err)
	}
	qdiscs, err := whole(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(port) })
	if err != nil {
		return false, fmt.Errorf("list qdiscs of %s: %w", port.Attrs().Name, err)
	}
	for _, q := range qdiscs {
		switch q.Type() {
		case "noqueue", "clsact", "ingress":
		default:
			return true, nil
		}
	}
	filters, err := tcfilter.Egress(ifindex)
	if err != nil {
		return false, err
	}
	for _, f := range filters {
		if !f.Own() {
			return true, nil
		}
	}
	return false, nil
}
