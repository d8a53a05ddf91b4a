package bench

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netdev"
)

// ForgetConnections flushes the conntrack table of the current namespace.
func ForgetConnections() error {
	if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		return fmt.Errorf("flush conntrack: %w", err)
	}
	return nil
}

// nothingAttached returns an error if BPF programs are attached to devices of the
// current namespace: they would distort the measurement of a plain container.
func nothingAttached() error {
	links, err := netdev.List()
	if err != nil {
		return fmt.Errorf("list the devices: %w", err)
	}
	for _, l := range links {
		n, err := countPrograms(l)
		if err != nil {
			return fmt.Errorf("list the BPF programs at %s: %w", l.Attrs().Name, err)
		}
		if n > 0 {
			return fmt.Errorf("%d BPF programs are still attached to %s", n, l.Attrs().Name)
		}
	}
	return nil
}

// countPrograms returns the number of tcx programs and tc filters at a device.
func countPrograms(l netlink.Link) (int, error) {
	n := 0
	for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		found, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: hook})
		if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) { // this kernel has no tcx
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
