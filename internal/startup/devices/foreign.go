package devices

import (
	"iter"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/startup/ipam"
)

// What is in a container's namespace may be of any size: it is read, but not kept, without a
// bound.
const (
	mostMarked    = 64 // devices in a namespace
	mostAddresses = 8  // of a device, in each family
)

// Marked returns the devices in the namespace of the calling thread whose alias begins with a
// prefix, the first 64.
func Marked(prefix string) (all []netlink.Link, err error) {
	var found []int
	err = dump(unix.RTM_GETLINK, unix.SizeofIfInfomsg, func(header []byte, attrs iter.Seq2[uint16, []byte]) {
		for typ, value := range attrs {
			if typ == unix.IFLA_IFALIAS && len(found) < mostMarked && strings.HasPrefix(string(value), prefix) {
				found = append(found, indexAt(header[4:]))
			}
		}
	})
	for _, index := range found {
		if l, err := netlink.LinkByIndex(index); err == nil { // else it is gone
			all = append(all, l)
		}
	}
	return all, err
}

// Leases returns a device's addresses but link-local ones, in the namespace of the calling
// thread: the first 8 of each family.
func Leases(l netlink.Link) (all []ipam.Lease, err error) {
	count := make(map[byte]int)
	err = dump(unix.RTM_GETADDR, unix.SizeofIfAddrmsg, func(header []byte, attrs iter.Seq2[uint16, []byte]) {
		if indexAt(header[4:]) != l.Attrs().Index || count[header[0]] == mostAddresses {
			return
		}
		var addr netip.Addr
		for typ, value := range attrs {
			if typ == unix.IFA_LOCAL || typ == unix.IFA_ADDRESS && !addr.IsValid() {
				addr, _ = netip.AddrFromSlice(value)
			}
		}
		if addr.IsValid() && !addr.IsLinkLocalUnicast() {
			count[header[0]]++
			all = append(all, ipam.Lease{Address: netip.PrefixFrom(addr, int(header[1]))})
		}
	})
	return all, err
}
