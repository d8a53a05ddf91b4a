package topology

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
)

// sysClassNet is the kernel's directory of the host's devices.
const sysClassNet = "/sys/class/net"

// takeVF moves the device of a virtual function into a node. With a VLAN the link's
// interface is a VLAN device on top of it: both ends of a link use the same VLAN,
// and their ports can carry several links.
func (b *builder) takeVF(l Link, e End) error {
	host, err := vfDevice(sysClassNet, e.Host, e.VF)
	if err != nil {
		return err
	}
	if l.VLAN == 0 {
		return b.take(e, host, e.Interface)
	}
	below := belowVLAN + e.Interface
	if err := b.take(e, host, below); err != nil {
		return err
	}
	h := b.nodes[e.Node]
	vf, err := h.LinkByName(below)
	if err != nil {
		return fmt.Errorf("find %s: %w", below, err)
	}
	if err := h.LinkSetUp(vf); err != nil {
		return fmt.Errorf("switch %s on: %w", below, err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex = e.Interface, vf.Attrs().Index
	if err := h.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: l.VLAN, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}); err != nil {
		return fmt.Errorf("add VLAN %d on %s: %w", l.VLAN, below, err)
	}
	return nil
}

// vfDevice returns the network device of a virtual function, from sysfs.
func vfDevice(sys, pf string, vf int) (string, error) {
	device := filepath.Join(sys, pf, "device")
	if _, err := os.Stat(filepath.Join(sys, pf)); err != nil {
		return "", fmt.Errorf(`this machine has no device %q; "ip link" lists them`, pf)
	}
	number, err := os.ReadFile(filepath.Join(device, "sriov_numvfs"))
	if err != nil {
		return "", fmt.Errorf("%s has no virtual functions: its driver or the machine has no SR-IOV", pf)
	}
	devices, err := os.ReadDir(filepath.Join(device, fmt.Sprintf("virtfn%d", vf), "net"))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", fmt.Errorf("%s has no VF %d with a network driver, of %s; to have one: echo %d > %s/sriov_numvfs",
			pf, vf, strings.TrimSpace(string(number)), vf+1, device)
	case err != nil:
		return "", fmt.Errorf("VF %d of %s: %w", vf, pf, err)
	case len(devices) == 0:
		return "", fmt.Errorf("VF %d of %s is in another namespace already", vf, pf)
	}
	return devices[0].Name(), nil
}
