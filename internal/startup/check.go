package startup

import (
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/devices"
)

// Check reports whether a container's device is as ADD made it; path is the
// namespace's path as this process sees it.
func (a *Agent) Check(path string, at cni.Attachment, c *cni.Conf) error {
	asked := newRecord(at, c)
	defer a.records.lock(asked.key)()
	r := a.records.get(asked.key)
	if r == nil {
		return types.NewError(types.ErrUnknownContainer, fmt.Sprintf("container %s has no device %s in network %q", at.ContainerID, at.IfName, c.Name), "")
	}
	made := attached(r, c)
	if err := a.host.Check(made); err != nil {
		return err
	}
	if err := netns.Do(path, func() error { return devices.CheckInside(made) }); err != nil {
		return err
	}
	if _, err := a.delegate("CHECK", asked); err != nil {
		return fmt.Errorf("check an address with ipam plugin %s: %w", c.IPAM.Type, err)
	}
	return nil
}

// attached returns the expected state of an attachment.
func attached(r *Record, c *cni.Conf) devices.Attached {
	made := devices.Attached{
		Network: &r.Network, QoS: r.Network.QoS, Host: r.Host, Name: r.IfName, Leases: r.Leases,
	}
	if c.Bandwidth != nil {
		made.QoS = c.Bandwidth
	}
	if r.Result == nil { // the record was rebuilt
		return made
	}
	result := r.Result
	if c.Prev.PrevResult != nil {
		// A later plugin of the chain may have changed the MAC address.
		if last, err := types100.GetResult(c.Prev.PrevResult); err == nil {
			result = last
		}
	}
	for _, ip := range result.IPs { // those of the runtime, too
		at := ip.Interface
		if at == nil || *at < 0 || *at >= len(result.Interfaces) || result.Interfaces[*at].Sandbox == "" || result.Interfaces[*at].Name != r.IfName {
			continue
		}
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			made.Addresses = append(made.Addresses, addr.Unmap())
		}
	}
	for _, i := range result.Interfaces {
		if i.Sandbox != "" && i.Name == r.IfName {
			made.MAC = i.Mac
		}
	}
	for _, route := range r.Result.Routes {
		if dst, err := netip.ParsePrefix(route.Dst.String()); err == nil {
			made.Routes = append(made.Routes, dst)
		}
	}
	return made
}
