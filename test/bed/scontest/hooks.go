package scontest

import (
	"errors"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/lab"
)

// Programs counts the tcx programs of a device.
func (b *Bed) Programs(dev string, at ebpf.AttachType) (n int) {
	b.T.Helper()
	err := b.Do(lab.Device, func() error {
		iface, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		r, err := link.QueryPrograms(link.QueryOptions{Target: iface.Index, Attach: at})
		if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) {
			return nil // no tcx, before Linux 6.6
		}
		if err != nil {
			return err
		}
		n = len(r.Programs)
		return nil
	})
	if err != nil {
		b.T.Fatal(err)
	}
	return n
}
