package startup

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/devices"
	"github.com/scon-project/scon/internal/startup/ipam"
)

// lease leases addresses for the attachment, from the network's own ranges or from
// another IPAM plugin.
func (d *addition) lease() (err error) {
	if d.n.space == nil {
		return d.leaseOfDelegate()
	}
	d.r.Leases, err = d.n.space.Allocate(now())
	if errors.Is(err, ipam.ErrExhausted) && d.n.pool != nil {
		d.r.Leases, err = d.n.leaseOfPool()
	}
	if errors.Is(err, ipam.ErrExhausted) {
		return types.NewError(types.ErrPluginNotAvailable, fmt.Sprintf("network %q: %v", d.conf.Name, err), "")
	}
	if err == nil {
		d.undo.by(func() error { return d.unlease(d.r) })
	}
	return err
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

// leaseOfDelegate leases the addresses that another plugin chooses, and takes its routes.
func (d *addition) leaseOfDelegate() error {
	result, err := d.askForLease()
	if err != nil {
		return fmt.Errorf("ask ipam plugin %s for an address: %w", d.conf.IPAM.Type, err)
	}
	d.undo.by(func() error { return d.unlease(d.r) })
	if len(result.IPs) == 0 {
		return fmt.Errorf("ask ipam plugin %s for an address: got none", d.conf.IPAM.Type)
	}
	for _, ip := range result.IPs {
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		bits, _ := ip.Address.Mask.Size()
		if !ok {
			return fmt.Errorf("ask ipam plugin %s for an address: got %v", d.conf.IPAM.Type, ip.Address)
		}
		gw, _ := netip.AddrFromSlice(ip.Gateway)
		l := ipam.Lease{Address: netip.PrefixFrom(addr.Unmap(), bits), Gateway: gw.Unmap()}
		if d.conf.Routed() && !l.Gateway.IsValid() { // the host is it, at the address that plugin bridge takes
			l.Gateway = l.Address.Masked().Addr().Next()
			if addr := l.Address.Addr(); l.Gateway == addr { // of a /31 or /127
				l.Gateway = addr.Prev()
			}
		}
		d.r.Leases = append(d.r.Leases, l)
	}
	d.n.learn(d.r.Leases)
	conf := *d.conf // which is also the network's, without this container's routes
	if conf.DNS.IsEmpty() {
		conf.DNS = result.DNS
	}
	conf.Routes, conf.IPAM.Routes = nil, nil // the plugin has read them itself
	for _, route := range result.Routes {
		if dst, err := netip.ParsePrefix(route.Dst.String()); err == nil {
			conf.Routes = append(conf.Routes, dst)
			gw := ""
			if route.GW != nil {
				gw = route.GW.String()
			}
			conf.IPAM.Routes = append(conf.IPAM.Routes, cni.Route{Dst: dst.String(), GW: gw})
		}
	}
	d.conf = &conf
	return nil
}

// askForLease asks another plugin for addresses. The plugin keeps them in files
// of its own until a DEL, so the record is written first: it stands for an unfinished
// attachment.
func (d *addition) askForLease() (*types100.Result, error) {
	if err := d.store.put(d.r); err != nil {
		return nil, err
	}
	result, err := d.delegate("ADD", d.r)
	step("add-delegated")
	if errors.Is(err, cni.ErrNoPlugin) {
		return nil, errors.Join(err, d.store.remove(d.r))
	}
	if err != nil {
		// The plugin may have leased an address before it failed.
		if undone := d.unlease(d.r); undone != nil {
			d.log.Warn("undo a failed ADD", "container", d.r.ContainerID, "error", undone)
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
	a.networks.release(r)
	if r.Network.IPAM.Type == cni.OwnIPAM {
		return nil
	}
	return a.store.remove(r)
}

// tellDelegate releases an attachment's addresses at the IPAM plugin.
func (a *Agent) tellDelegate(r *Record) error {
	if _, err := a.delegate("DEL", r); err != nil {
		return fmt.Errorf("release an address of ipam plugin %s: %w", r.Network.IPAM.Type, err)
	}
	return nil
}

// delegate calls the IPAM plugin of an attachment's network, unless that is our own.
func (a *Agent) delegate(verb string, r *Record) (*types100.Result, error) {
	if r.Network.IPAM.Type == cni.OwnIPAM {
		return nil, nil
	}
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
