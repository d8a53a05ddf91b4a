package startup

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/cni"
	"github.com/scon-project/scon/internal/netns"
)

// Check tells whether a container's device is as ADD has made
// it; path is the namespace's as this process sees it.
func (a *Agent) Check(path string, at cni.Attachment, c *cni.Conf) error {
	key := keyOf(c.Name, at.ContainerID, at.IfName)
	defer a.busy.lock(key)()
	r := a.record(key)
	if r == nil {
		return types.NewError(types.ErrUnknownContainer, fmt.Sprintf("container %s has no device %s in network %q", at.ContainerID, at.IfName, c.Name), "")
	}
	if r.Host != "" {
		if _, err := netlink.LinkByName(r.Host); err != nil {
			return fmt.Errorf("look for device %s on the host: %w", r.Host, err)
		}
	}
	return netns.Do(path, func() error {
		l, err := netlink.LinkByName(r.IfName)
		if err != nil {
			return fmt.Errorf("look for device %s in the container: %w", r.IfName, err)
		}
		if l.Attrs().Flags&1 == 0 {
			return fmt.Errorf("device %s of the container is down", r.IfName)
		}
		there, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			return fmt.Errorf("list addresses of %s: %w", r.IfName, err)
		}
		for _, want := range r.Leases {
			if !slices.ContainsFunc(there, func(got netlink.Addr) bool {
				addr, ok := netip.AddrFromSlice(got.IP)
				return ok && addr.Unmap() == want.Address.Addr()
			}) {
				return fmt.Errorf("device %s of the container has lost its address %v", r.IfName, want.Address)
			}
		}
		routes, err := netlink.RouteList(l, netlink.FAMILY_ALL)
		if err != nil {
			return fmt.Errorf("list routes of %s: %w", r.IfName, err)
		}
		for _, want := range r.Result.Routes {
			if !slices.ContainsFunc(routes, func(got netlink.Route) bool { return sameNet(got.Dst, want) }) {
				return fmt.Errorf("the container has lost its route to %v", &want.Dst)
			}
		}
		return nil
	})
}

// sameNet compares a route's destination; the kernel may have none for the
// default route.
func sameNet(got *net.IPNet, want *types.Route) bool {
	ones, _ := want.Dst.Mask.Size()
	if got == nil {
		return ones == 0
	}
	return got.String() == want.Dst.String()
}
