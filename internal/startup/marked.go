package startup

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/startup/devices"
	"github.com/scon-project/scon/internal/startup/ipam"
)

// A device without an end on the host has a mark in its alias, in the container.

// mark is that of an attachment's device: its key, or the number of the
// pooled namespace that the device came with.
func (r *Record) mark() string {
	if r.Pooled != "" {
		return pooledMark + r.Pooled
	}
	return r.key
}

const pooledMark = "pool "

// alias is what a device with a mark has.
func (a *Agent) alias(mark string) string { return a.markPrefix() + mark }

// markPrefix tells agents apart, which see each other's containers.
func (a *Agent) markPrefix() string { return fmt.Sprintf("scon %d ", a.home) }

// inside is a device in a container.
type inside struct {
	netns string // path
	link  netlink.Link
}

// marked are this agent's, by their marks. It looks into every
// namespace that has a name or a process.
func (a *Agent) marked() map[string]inside {
	found := make(map[string]inside)
	for _, path := range namespaces() {
		// It may end meanwhile.
		_ = netns.Do(path, func() error {
			links, err := netlink.LinkList()
			for _, l := range links {
				if mark, ok := strings.CutPrefix(l.Attrs().Alias, a.markPrefix()); ok {
					found[mark] = inside{path, l}
				}
			}
			return err
		})
	}
	return found
}

// namespaces are paths of all that have a name or a process, each once.
func namespaces() (paths []string) {
	seen := make(map[uint64]bool)
	names, _ := filepath.Glob(netns.Path("*"))
	for _, path := range names {
		if inode, err := netns.Inode(path); err == nil && !seen[inode] {
			seen[inode] = true
			paths = append(paths, path)
		}
	}
	processes, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, path := range processes {
		var inode uint64
		word, err := os.Readlink(path)
		if err != nil {
			continue
		}
		if _, err := fmt.Sscanf(word, "net:[%d]", &inode); err == nil && !seen[inode] {
			seen[inode] = true
			paths = append(paths, path)
		}
	}
	return paths
}

// remove takes a device away that no record tells of.
func (i inside) remove() error {
	return netns.Do(i.netns, func() error { return devices.RemoveInside(i.link.Attrs().Name) })
}

// leases are a device's addresses, in the namespace of the calling thread.
func leases(l netlink.Link) (all []ipam.Lease, err error) {
	addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	for _, got := range addrs {
		addr, ok := netip.AddrFromSlice(got.IP)
		if bits, _ := got.Mask.Size(); ok && !got.IP.IsLinkLocalUnicast() {
			all = append(all, ipam.Lease{Address: netip.PrefixFrom(addr.Unmap(), bits)})
		}
	}
	return all, err
}
