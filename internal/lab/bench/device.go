package bench

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// forgetConnections empties the connection tracking of the current namespace.
func forgetConnections() error {
	if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		return fmt.Errorf("empty the connection tracking: %w", err)
	}
	return nil
}

// nothingAttached refuses BPF programs at the devices of the current namespace:
// with one there, it would not be a plain container that is measured.
func nothingAttached() error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list the devices: %w", err)
	}
	for _, l := range links {
		n, err := countPrograms(l)
		if err != nil {
			return fmt.Errorf("look for programs at %s: %w", l.Attrs().Name, err)
		}
		if n > 0 {
			return fmt.Errorf("%d BPF programs are still attached to %s", n, l.Attrs().Name)
		}
	}
	return nil
}

// countPrograms at a device, by tcx or as a filter of tc.
func countPrograms(l netlink.Link) (int, error) {
	n := 0
	for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		found, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: hook})
		if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) { // a kernel without tcx
			continue
		}
		if err != nil {
			return 0, err
		}
		n += len(found.Programs)
	}
	qdiscs, err := netlink.QdiscList(l)
	if err != nil {
		return 0, err
	}
	for _, q := range qdiscs {
		if q.Type() != "clsact" {
			continue
		}
		for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
			filters, err := netlink.FilterList(l, parent)
			if err != nil {
				return 0, err
			}
			n += len(filters)
		}
	}
	return n, nil
}
