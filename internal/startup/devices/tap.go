package devices

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TapName is the microVM's device in the container's namespace.
const TapName = "tap0"

// addTap makes a tap and connects it with the container's device, in the namespace of
// the calling thread: the microVM receives every packet and uses the device's
// addresses (Understanding Network Startup for Secure Containers, section 2.2, step 3).
func addTap(s Spec) error {
	device, err := netlink.LinkByName(s.Name)
	if err != nil {
		return fmt.Errorf("connect the tap: %w", err)
	}
	tap := &netlink.Tuntap{
		LinkAttrs: netlink.LinkAttrs{Name: TapName, MTU: device.Attrs().MTU},
		Mode:      netlink.TUNTAP_MODE_TAP,
		Flags:     netlink.TUNTAP_ONE_QUEUE | netlink.TUNTAP_VNET_HDR,
	}
	if err := netlink.LinkAdd(tap); err != nil {
		return fmt.Errorf("make tap %s: %w", TapName, err)
	}
	made, err := netlink.LinkByName(TapName)
	if err == nil {
		err = errors.Join(netlink.LinkSetUp(made), redirect(device, made), redirect(made, device))
	}
	if err != nil {
		return fmt.Errorf("connect tap %s: %w", TapName, err)
	}
	return nil
}

// redirect sends every packet received at one device out of another one.
func redirect(from, to netlink.Link) error {
	index := from.Attrs().Index
	ingress := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_INGRESS, Handle: netlink.MakeHandle(0xffff, 0)}}
	if err := netlink.QdiscAdd(ingress); err != nil {
		return fmt.Errorf("add ingress to %s: %w", from.Attrs().Name, err)
	}
	err := netlink.FilterAdd(&netlink.U32{ // without a selector: every packet
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.MakeHandle(0xffff, 0), Priority: 1, Protocol: unix.ETH_P_ALL},
		RedirIndex:  to.Attrs().Index,
	})
	if err != nil {
		return fmt.Errorf("redirect %s to %s: %w", from.Attrs().Name, to.Attrs().Name, err)
	}
	return nil
}
