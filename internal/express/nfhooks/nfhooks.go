// Package nfhooks lists the functions at Netfilter's hooks of a network
// namespace that judge packets by what is in no rule: BPF programs, IPVS,
// ebtables-legacy, modules of others. Express packets skip all hooks of
// Netfilter, so the connections that pass such a function have to stay regular.
//
// The kernel lists its hooks by netlink from Linux 5.14 on, if it was built
// with CONFIG_NETFILTER_NETLINK_HOOK. Where it was not, BPF programs are found
// by an iterator of BPF links, which takes BTF, IPVS and ebtables-legacy by their
// files in /proc; other modules are not seen then.
package nfhooks

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/host/nlmsg"
)

// Hook is a function at one of Netfilter's hooks.
type Hook struct {
	Family   uint8  // unix.NFPROTO_IPV4, NFPROTO_IPV6, NFPROTO_BRIDGE
	Point    uint8  // unix.NF_INET_*, the same numbers for bridges
	Priority int32  // functions run in ascending order
	Function string // "" of a BPF program
	Module   string // that has the function, "" if the kernel itself
	Program  uint32 // number of the BPF program, 0 if it is another function
	Name     string // of the BPF program, "" if that is not known
}

// String names a hook as "nft list hooks" does: what is there, and where.
func (h Hook) String() string {
	name := h.Function
	if h.Module != "" {
		name += " [" + h.Module + "]"
	}
	if h.Program != 0 {
		name = strings.TrimSpace(fmt.Sprintf("BPF program %d %s", h.Program, h.Name))
	}
	return fmt.Sprintf("%s at %s %s (priority %d)", name, families[h.Family], points[h.Point], h.Priority)
}

var families = map[uint8]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_BRIDGE: "bridge"}

var points = [...]string{"prerouting", "input", "forward", "output", "postrouting"}

// Reader lists hooks of the network namespace in which it was opened. It is for
// one goroutine.
type Reader struct {
	sock  *nlmsg.Requests
	links *links // nil where the kernel has no BTF
	// Blind says why functions of other modules than IPVS and ebtables-legacy are
	// not seen, nil if they are.
	Blind error
	// Tracked are the families whose packets conntrack sees, as Foreign has found
	// them last; nil if that is not known.
	Tracked map[uint8]bool
}

// Open finds out how this kernel lists its hooks.
func Open() (_ *Reader, err error) {
	r := new(Reader)
	if r.sock, err = nlmsg.OpenRequests(unix.NETLINK_NETFILTER); err != nil {
		return nil, fmt.Errorf("list Netfilter's hooks: %w", err)
	}
	inode, err := netns.Inode("")
	if err == nil {
		r.links, err = openLinks(uint32(inode))
	}
	if _, dumpErr := r.dump(unix.NFPROTO_IPV4, unix.NF_INET_FORWARD); dumpErr != nil {
		r.Blind = errors.Join(fmt.Errorf("list Netfilter's hooks (CONFIG_NETFILTER_NETLINK_HOOK): %w", dumpErr), err)
	}
	return r, nil
}

// Close ends the reader.
func (r *Reader) Close() error {
	if r.links != nil {
		r.links.close()
	}
	return r.sock.Close()
}

// Foreign returns the hooks that forwarded or bridged packets pass and that are
// neither the kernel's own nor rules, which package rules reads. They are sorted.
func (r *Reader) Foreign() (all []Hook, err error) {
	if r.Blind == nil {
		all, err = r.dumpAll()
		r.Tracked = trackedBy(all)
	} else {
		all, err = guess()
	}
	if err != nil {
		return nil, err
	}
	if r.links != nil { // they know the programs' names
		all = slices.DeleteFunc(all, func(h Hook) bool { return h.Program != 0 })
		programs, err := r.links.list()
		if err != nil {
			return nil, err
		}
		all = append(all, programs...)
	}
	all = slices.DeleteFunc(all, func(h Hook) bool {
		return int(h.Point) >= len(points) || families[h.Family] == "" || !h.isOnPath() || h.isKnown()
	})
	sort.SliceStable(all, func(i, j int) bool {
		a, b := &all[i], &all[j]
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Point, b.Point), cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.String(), b.String())) < 0
	})
	return all, nil
}

// trackedBy returns the families whose packets conntrack's functions see. Those at a
// bridge, NFPROTO_BRIDGE, see both.
func trackedBy(all []Hook) map[uint8]bool {
	tracked := make(map[uint8]bool)
	for _, h := range all {
		if h.Function == "ipv4_conntrack_in" || h.Function == "ipv6_conntrack_in" {
			tracked[h.Family] = true
		}
		if h.Family == unix.NFPROTO_BRIDGE && strings.HasPrefix(h.Function, "nf_ct_bridge") {
			tracked[unix.NFPROTO_IPV4], tracked[unix.NFPROTO_IPV6], tracked[unix.NFPROTO_BRIDGE] = true, true, true
		}
	}
	return tracked
}

// isOnPath reports whether forwarded packets pass a hook: of a bridge all of them,
// for a packet enters the host's IP layer, and leaves it, by the bridge's input
// and output.
func (h Hook) isOnPath() bool {
	return h.Family == unix.NFPROTO_BRIDGE || h.Point != unix.NF_INET_LOCAL_IN && h.Point != unix.NF_INET_LOCAL_OUT
}
