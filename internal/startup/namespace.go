package startup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/startup/devices"
)

// A device without an end on the host carries a mark in its alias, in the container.

// mark returns the mark of an attachment's device: its key, or the number of the
// pooled namespace that the device belongs to.
func (r *Record) mark() string {
	if r.Pooled != "" {
		return pooledMark + r.Pooled
	}
	return r.key
}

const pooledMark = "pool "

// namespace is the network namespace of an agent.
type namespace struct {
	inode uint64
	owner uint64 // inode of the user namespace that owns it
}

// currentNamespace returns that of the calling thread.
func currentNamespace() (n namespace, err error) {
	here, err := netns.Open("")
	if err != nil {
		return n, err
	}
	defer here.Close()
	if n.inode, err = inodeOf(here); err != nil {
		return n, err
	}
	n.owner, err = netns.Owner(here)
	return n, err
}

// sharesOwner reports whether a namespace belongs to the same user namespace.
func (n namespace) sharesOwner(ns *os.File) bool {
	owner, err := netns.Owner(ns)
	return err == nil && owner == n.owner
}

// alias returns the alias of a device with a mark. It distinguishes agents that see each other's
// containers.
func (n namespace) alias(mark string) string { return fmt.Sprintf("scon %d %s", n.inode, mark) }

// pooledName returns the name of a pooled namespace that scon-oci gives to a runtime.
// It contains the agent's namespace, since the agents of a machine share /run/netns.
func (n namespace) pooledName(number string) string {
	return fmt.Sprintf("cni-scon-%d-%s", n.inode, number)
}

// inside is a device in a container.
type inside struct {
	netns string // path
	link  netlink.Link
}

// marked returns the agent's devices by their marks. It searches every namespace
// that has a name or a process, where anyone may have made any number of devices.
func (n namespace) marked() map[string]inside {
	found := make(map[string]inside)
	for _, path := range namespaces() {
		// The namespace may end meanwhile.
		_ = netns.Do(path, func() error {
			links, err := devices.Marked(n.alias(""))
			for _, l := range links {
				if mark, ok := strings.CutPrefix(l.Attrs().Alias, n.alias("")); ok { // it may have changed
					found[mark] = inside{path, l}
				}
			}
			return err
		})
	}
	return found
}

// namespaces returns one path of each namespace that has a name or a process.
func namespaces() (paths []string) {
	seen := make(map[uint64]bool)
	for _, pattern := range []string{netns.Path("*"), "/proc/[0-9]*/ns/net"} {
		found, _ := filepath.Glob(pattern) // the pattern is valid
		for _, path := range found {
			if inode, err := netns.Inode(path); err == nil && !seen[inode] {
				seen[inode] = true
				paths = append(paths, path)
			}
		}
	}
	return paths
}

// remove removes a device that has no record.
func (i inside) remove() error {
	return netns.Do(i.netns, func() error { return devices.RemoveInside(i.link.Attrs().Index, i.link.Attrs().Name) })
}
