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

// lease takes addresses for an attachment: of the network's own ranges, or
// those that a stock plugin gives.
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
	c.IPAM.Routes = nil // as the plugin reads them
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

// leaseOfPool takes what the pool has leased, for a container goes before it.
func (n *network) leaseOfPool() (leases []ipam.Lease, err error) {
	n.hungry.Add(1)
	defer n.hungry.Add(-1)
	for n.pool.Shed() {
		step("lease-shed")
		if leases, err = n.space.Allocate(now()); !errors.Is(err, ipam.ErrExhausted) {
			return leases, err
		}
	}
	return n.space.Allocate(now())
}

// leaseOfDelegate asks another plugin for addresses. It has them in a file of
// its own then, and nobody but a DEL takes them out: so the record is written
// first, and stands for an attachment that is not finished.
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
		// It may have leased something all the same.
		if undone := a.unlease(r); undone != nil {
			a.log.Warn("an ADD that went wrong", "container", r.ContainerID, "error", undone)
		}
	}
	return result, err
}

// unlease gives the addresses back of an attachment that has no record, or an
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

// tellDelegate tells the plugin that gave an attachment its addresses, if that
// is another one, that they are free.
func (a *Agent) tellDelegate(r *Record) error {
	if r.Network.IPAM.Type == cni.OwnIPAM {
		return nil
	}
	if _, err := a.delegate("DEL", r); err != nil {
		return fmt.Errorf("tell ipam plugin %s that an address is free: %w", r.Network.IPAM.Type, err)
	}
	return nil
}

// release gives addresses back to the network's own ranges. Those of an
// attachment that has lost its record are reserved in every network, and those of
// another one in a neighbour that has them in its ranges.
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

// leased tells whether an attachment of a network has an address. The caller
// holds mu.
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

// resultOf is what the runtime hears of a device.
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
