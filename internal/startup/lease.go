package startup

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/devices"
	"github.com/scon-project/scon/internal/startup/ipam"
)

// lease leases addresses for an attachment, from the network's own ranges or from
// another IPAM plugin.
func (a *Agent) lease(n *network, r *Record, at cni.Attachment, c *cni.Conf) (err error) {
	if n.space != nil {
		r.Leases, err = n.space.Allocate(now())
		if errors.Is(err, ipam.ErrExhausted) && n.pool != nil {
			r.Leases, err = n.leaseOfPool()
		}
		if errors.Is(err, ipam.ErrExhausted) {
			return types.NewError(types.ErrPluginNotAvailable, fmt.Sprintf("network %q: %v", c.Name, err), "")
		}
		return err
	}
	result, err := a.leaseOfDelegate(r, at, c)
	if err != nil {
		return fmt.Errorf("ask ipam plugin %s for an address: %w", c.IPAM.Type, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.unlease(r))
		}
	}()
	for _, ip := range result.IPs {
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		bits, _ := ip.Address.Mask.Size()
		if !ok {
			return fmt.Errorf("ask ipam plugin %s for an address: got %v", c.IPAM.Type, ip.Address)
		}
		gw, _ := netip.AddrFromSlice(ip.Gateway)
		r.Leases = append(r.Leases, ipam.Lease{Address: netip.PrefixFrom(addr.Unmap(), bits), Gateway: gw.Unmap()})
	}
	n.learn(r.Leases)
	if c.DNS.IsEmpty() {
		c.DNS = result.DNS
	}
	c.IPAM.Routes = nil // the plugin has read them itself
	for _, route := range result.Routes {
		if dst, err := netip.ParsePrefix(route.Dst.String()); err == nil {
			c.Routes = append(c.Routes, dst)
			gw := ""
			if route.GW != nil {
				gw = route.GW.String()
			}
			c.IPAM.Routes = append(c.IPAM.Routes, cni.Route{Dst: dst.String(), GW: gw})
		}
	}
	return nil
}

// leaseOfPool leases an address that a pooled namespace holds: containers come first.
func (n *network) leaseOfPool() (leases []ipam.Lease, err error) {
	n.waiting.Add(1)
	defer n.waiting.Add(-1)
	for n.pool.Shed() {
		step("lease-shed")
		if leases, err = n.space.Allocate(now()); !errors.Is(err, ipam.ErrExhausted) {
			return leases, err
		}
	}
	return n.space.Allocate(now())
}

// leaseOfDelegate asks another plugin for addresses. The plugin keeps them in files
// of its own until a DEL, so the record is written first: it stands for an unfinished
// attachment.
func (a *Agent) leaseOfDelegate(r *Record, at cni.Attachment, c *cni.Conf) (*types100.Result, error) {
	r.Args, r.CNIPath, r.Conf = at.Args, c.Path, c.Raw
	if err := a.store.put(r); err != nil {
		return nil, err
	}
	result, err := a.delegate("ADD", r)
	step("add-delegated")
	if errors.Is(err, cni.ErrNoPlugin) {
		return nil, errors.Join(err, a.store.remove(r))
	}
	if err != nil {
		// The plugin may have leased an address before it failed.
		if undone := a.unlease(r); undone != nil {
			a.log.Warn("undo a failed ADD", "container", r.ContainerID, "error", undone)
		}
	}
	return result, err
}

// unlease releases the addresses of an attachment that has no record, or an
// unfinished one.
func (a *Agent) unlease(r *Record) error {
	if err := a.tellDelegate(r); err != nil {
		return err
	}
	a.release(r)
	if r.Network.IPAM.Type == cni.OwnIPAM {
		return nil
	}
	return a.store.remove(r)
}

// tellDelegate releases an attachment's addresses at the IPAM plugin, unless that is
// our own.
func (a *Agent) tellDelegate(r *Record) error {
	if r.Network.IPAM.Type == cni.OwnIPAM {
		return nil
	}
	if _, err := a.delegate("DEL", r); err != nil {
		return fmt.Errorf("release an address of ipam plugin %s: %w", r.Network.IPAM.Type, err)
	}
	return nil
}

// release returns addresses to the network's own ranges. Addresses of a rebuilt
// record are reserved in every network, those of another network in each neighbour
// whose ranges contain them.
func (a *Agent) release(r *Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, n := range a.networks {
		foreign := name != r.Network.Name
		if n.space == nil || foreign && !r.rebuilt() && !n.conf.Neighbours(&r.Network) {
			continue
		}
		n.space.Release(slices.DeleteFunc(slices.Clone(r.Leases), func(l ipam.Lease) bool {
			return (foreign || r.rebuilt()) && a.leased(name, l)
		}), now())
	}
}

// leased reports whether an attachment of a network has an address. The caller holds
// mu.
func (a *Agent) leased(network string, l ipam.Lease) bool {
	for _, r := range a.records {
		if r.Network.Name == network && slices.ContainsFunc(r.Leases, func(other ipam.Lease) bool { return other.Address.Addr() == l.Address.Addr() }) {
			return true
		}
	}
	return false
}

// delegate calls the IPAM plugin of an attachment's network.
func (a *Agent) delegate(verb string, r *Record) (*types100.Result, error) {
	return cni.Delegate(a.ctx, r.Network.IPAM.Type, cni.Request{
		Command: verb, ContainerID: r.ContainerID, Netns: r.Netns, IfName: r.IfName, Args: r.Args, Path: r.CNIPath, Input: r.Conf,
	})
}

// resultOf returns the CNI result of a device.
func resultOf(c *cni.Conf, r *Record, m devices.Made) *types100.Result {
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, DNS: c.DNS}
	if c.Kind == cni.Veth || c.Kind == cni.OVS {
		result.Interfaces = append(result.Interfaces, &types100.Interface{Name: c.Bridge})
	}
	if m.HostMAC != nil {
		result.Interfaces = append(result.Interfaces, &types100.Interface{Name: r.Host, Mac: m.HostMAC.String(), Mtu: c.MTU})
	}
	result.Interfaces = append(result.Interfaces, &types100.Interface{Name: r.IfName, Mac: m.MAC.String(), Mtu: c.MTU, Sandbox: r.Netns})
	own := len(result.Interfaces) - 1
	for _, l := range r.Leases {
		ip := &types100.IPConfig{Interface: types100.Int(own), Address: ipNet(l.Address)}
		if l.Gateway.IsValid() {
			ip.Gateway = l.Gateway.AsSlice()
		}
		result.IPs = append(result.IPs, ip)
	}
	for i, dst := range c.Routes {
		result.Routes = append(result.Routes, &types.Route{Dst: ipNet(dst), GW: net.ParseIP(c.IPAM.Routes[i].GW)})
	}
	return result
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
