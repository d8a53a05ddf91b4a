// Package devices makes the primary device of a container, its CNI endpoint
// (Understanding Network Startup for Secure Containers, section 2.2), with addresses
// and routes and its state on the host.
//
// A device is made in the namespace where it is used. Moving it later would wait
// 16 ms for an RCU barrier under RTNL, which blocks every other start.
package devices

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/ipam"
)

// ErrNoKernel is wrapped when the kernel does not support a kind of device.
var ErrNoKernel = errors.New("this kernel does not support it")

// ErrNotPrepared is wrapped when a device that the network needs on the host is gone.
var ErrNotPrepared = errors.New("the network's device is gone")

// Spec describes a device to make.
type Spec struct {
	Conf   *cni.Conf
	Netns  *os.File // of the container
	Name   string   // in the container
	Host   string   // name of its end on the host
	Leases []ipam.Lease
	// Loopback brings lo up as well.
	Loopback bool
	// Mark is the alias of the container's device, "" for none. It identifies a device
	// without an end on the host.
	Mark string
}

// Made is the result of making a device.
type Made struct {
	Index        int              // of the container's device
	MAC, HostMAC net.HardwareAddr // HostMAC nil without a device on the host
}

// Host is the namespace with the host's ends of containers' devices. It is safe for
// concurrent use; devices are made one at a time, as the kernel does anyway.
type Host struct {
	rt     *nlmsg.Commands
	groups sync.Mutex // serializes changes of rules
	routes routes
}

// Open returns the Host of the calling thread's namespace.
func Open() (*Host, error) {
	rt, err := nlmsg.OpenCommands(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	return &Host{rt: rt}, nil
}

// Close releases the Host; devices stay.
func (h *Host) Close() {
	h.routes.close()
	h.rt.Close()
}

// A maker makes devices of one kind.
type maker interface {
	// prepare makes what the network's containers share.
	prepare(*Host, *cni.Conf) error
	// make makes the device and its end on the host.
	make(*Host, Spec, Made) error
	// macs returns the MAC addresses of both ends; nil leaves one to the kernel.
	macs(Spec) Made
	// routed reports whether the host is the only neighbour.
	routed() bool
}

// Optional methods of a maker, for state on the host beside devices.
type (
	remover interface {
		remove(*Host, *cni.Network, string) error
	} // removes a container's state, before its device
	sweeper    interface{ sweep(*Host, *cni.Conf) error }     // removes the state of devices that are gone
	unpreparer interface{ unprepare(*Host, *cni.Conf) error } // removes all, if unused
	checker    interface{ check(*Host, Attached) error }      // checks a container's state
)

var makers = map[string]maker{
	cni.Veth:      veth{},
	cni.PtP:       ptp{},
	cni.Netkit:    netkit{},
	cni.Macvlan:   upper{cni.Macvlan},
	cni.Macvtap:   upper{cni.Macvtap},
	cni.IPvlan:    upper{cni.IPvlan},
	cni.IPvtap:    upper{cni.IPvtap},
	cni.TCRouting: tcRouting{},
	cni.OVS:       ovs{},
}

// Prepare makes missing devices and rules that all containers of a network share.
func (h *Host) Prepare(c *cni.Conf) error {
	err := makers[c.Kind].prepare(h, c)
	if err == nil && c.Routed() {
		err = Forward(c.Subnets())
	}
	if err == nil {
		err = h.addShared(c)
	}
	if err != nil {
		return fmt.Errorf("prepare network %q: %w", c.Name, err)
	}
	return nil
}

// Make makes a device with its addresses and routes, or makes nothing.
func (h *Host) Make(s Spec) (made Made, err error) {
	m := makers[s.Conf.Kind]
	made = m.macs(s)
	if err := m.make(h, s, made); err != nil {
		return made, s.explain(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Remove(&s.Conf.Network, s.Host), s.inside(func() error { return RemoveInside(made.Index, s.Name) }))
		}
	}()
	err = s.inside(func() (err error) {
		if made.Index, err = indexOf(s.Name); err == nil {
			err = configure(s, made.Index, m.routed())
		}
		return err
	})
	if err != nil {
		return made, err
	}
	if err := h.limit(s); err != nil {
		return made, err
	}
	if err := h.addRules(s); err != nil {
		return made, err
	}
	return made, h.settle(s)
}

// SharedIndex returns the ifindex of a network's bridge or master in the namespace of
// the calling thread, 0 if it is missing, or a bridge that Prepare has to bring up.
func SharedIndex(n *cni.Network) int {
	name := cmp.Or(n.Bridge, n.Master)
	if name == "" {
		return 0
	}
	index, err := indexOf(name)
	if err != nil || n.Kind == cni.Veth && !IsUp(name) {
		return 0
	}
	return index
}

// ends are those of the container's pair; the host's is up, in a bridge if one is given.
func (s Spec) ends(m Made, bridge int) (host, inner link) {
	return link{name: s.Host, up: true, mac: m.HostMAC, mtu: s.Conf.MTU, master: bridge},
		link{name: s.Name, mac: m.MAC, mtu: s.Conf.MTU, netns: s.Netns}
}

// inside calls fn in the container's namespace.
func (s Spec) inside(fn func() error) error {
	return netns.Do(fmt.Sprintf("/proc/self/fd/%d", s.Netns.Fd()), fn)
}

// settle returns when the host can send to the container: the host's end of a pair has
// a carrier once the container's end is up, and a bridge once such a port is.
func (h *Host) settle(s Spec) error {
	var todo []nlmsg.Command
	for _, name := range []string{s.Host, s.Conf.Bridge} {
		if name == "" {
			continue
		}
		if index, err := indexOf(name); err == nil {
			todo = append(todo, settle(name, index))
		}
	}
	if len(todo) == 0 {
		return nil
	}
	return h.rt.Do(todo...)
}

// Remove removes a container's device by its end on the host, and its other state
// there. RemoveInside removes a device without such an end.
func (h *Host) Remove(n *cni.Network, host string) error {
	if err := h.dropRules(n, host); err != nil {
		return err
	}
	if !HasHost(n.Kind) {
		return nil
	}
	if r, ok := makers[n.Kind].(remover); ok {
		if err := r.remove(h, n, host); err != nil {
			return err
		}
	}
	return h.RemoveLink(host)
}

// Sweep removes the host state of a network's devices that are gone.
func (h *Host) Sweep(c *cni.Conf) error {
	s, ok := makers[c.Kind].(sweeper)
	if !ok {
		return nil
	}
	if err := s.sweep(h, c); err != nil {
		return fmt.Errorf("sweep network %q: %w", c.Name, err)
	}
	return nil
}

// HasHost reports whether devices of a kind have an end on the host.
func HasHost(kind string) bool {
	_, without := makers[kind].(upper)
	return !without
}

// RemoveInside removes the device in the namespace of the calling thread by its index, which a
// container cannot change, or by its name if that is 0. A missing device is no error, nor is one
// that nobody can remove, as lo: a container may have given it the name.
func RemoveInside(index int, name string) error {
	rt, err := nlmsg.OpenCommands(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer rt.Close()
	if err := rt.Do(delLink(index, name)); !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	return nil
}

// configure sets the device's addresses and routes, in the container.
func configure(s Spec, index int, routed bool) error {
	rt, err := nlmsg.OpenCommands(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer rt.Close()
	if s.Conf.IsGateway {
		if err := ignoreRouters(s.Name); err != nil {
			return err
		}
	}
	todo := []nlmsg.Command{setUp(s.Name, index)}
	if s.Loopback {
		todo = append(todo, setUp("lo", 1))
	}
	if s.Mark != "" {
		todo = append(todo, setAlias(s.Name, index, s.Mark))
	}
	for _, l := range s.Leases {
		if l.Address.Addr().Is6() {
			if err := allowIPv6(s.Name); err != nil {
				return err
			}
		}
		todo = append(todo, addressOf(index, l, routed)...)
	}
	for i, dst := range s.Conf.Routes {
		todo = append(todo, addRoute(index, dst, gatewayOf(s.Conf.IPAM.Routes[i].GW, dst, s.Leases)))
	}
	if err := rt.Do(todo...); err != nil {
		return err
	}
	if s.Conf.Tap {
		return addTap(s)
	}
	return nil
}

// addressOf adds one address. If only the host is a neighbour, the rest of the subnet
// is routed by the gateway.
func addressOf(index int, l ipam.Lease, routed bool) []nlmsg.Command {
	if !routed {
		return []nlmsg.Command{newAddr(index, l.Address)}
	}
	addr, gw := l.Address.Addr(), l.Gateway
	return []nlmsg.Command{
		newAddr(index, netip.PrefixFrom(addr, addr.BitLen())),
		newRoute(index, netip.PrefixFrom(gw, gw.BitLen()), netip.Addr{}),
		newRoute(index, l.Address.Masked(), gw),
	}
}

// gatewayOf returns the gateway of a route: its own, or that of its address family. Without
// one, which only another IPAM plugin leaves out, the destination is on-link.
func gatewayOf(named string, dst netip.Prefix, leases []ipam.Lease) netip.Addr {
	if gw, err := netip.ParseAddr(named); err == nil {
		return gw
	}
	for _, l := range leases {
		if l.Gateway.IsValid() && l.Gateway.Is4() == dst.Addr().Is4() {
			return l.Gateway
		}
	}
	return netip.Addr{}
}

// macsOf derives MAC addresses from the first address: the next container with that
// address has the same one, so neighbour tables stay valid. The host's begins with fe,
// so that a bridge does not adopt it.
func macsOf(leases []ipam.Lease) Made {
	if len(leases) == 0 {
		return Made{}
	}
	b := leases[0].Address.Addr().AsSlice()
	b = b[len(b)-4:]
	return Made{MAC: append(net.HardwareAddr{0x0a, 0x58}, b...), HostMAC: append(net.HardwareAddr{0xfe, 0x58}, b...)}
}

// explain adds the likely cause to the error of a device that cannot be made.
func (s Spec) explain(err error) error {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("kind %s: %w (%v); choose another kind", s.Conf.Kind, ErrNoKernel, err)
	case errors.Is(err, unix.EEXIST) && s.inside(func() error { _, err := indexOf(s.Name); return err }) == nil:
		return fmt.Errorf("the container's namespace already has a device %s: want another name or another namespace (%w)", s.Name, err)
	}
	return err
}

// Unprepare removes what Prepare made, if it is unused.
func (h *Host) Unprepare(c *cni.Conf) error {
	h.groups.Lock()
	err := errors.Join(unmasquerade(c), unisolate(c))
	if len(c.Rules) > 0 {
		err = errors.Join(err, h.removeTable())
	}
	h.groups.Unlock()
	if err != nil {
		return err
	}
	if u, ok := makers[c.Kind].(unpreparer); ok {
		return u.unprepare(h, c)
	}
	return nil
}
