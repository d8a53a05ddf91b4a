// Package devices makes the device by which a container is in its network: the
// CNI endpoint (startup.txt, section 2.2), with addresses and routes, and what
// belongs to it on the host.
//
// A device is made where it is used: moving one between namespaces waits 16 ms
// for an RCU barrier, under RTNL, which everybody else waits for meanwhile.
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

// ErrNoKernel is wrapped when the kernel has no device of a kind.
var ErrNoKernel = errors.New("this kernel has none")

// ErrNotPrepared is wrapped when what a network needs on the host has gone.
var ErrNotPrepared = errors.New("the network's device is gone")

// Spec is a container's device to be made.
type Spec struct {
	Conf   *cni.Conf
	Netns  *os.File // of the container
	Name   string   // in the container
	Host   string   // name of what belongs to it on the host
	Leases []ipam.Lease
	// Loopback brings lo up as well.
	Loopback bool
	// Mark is the container's device's alias, "" for none: by it Marked finds a
	// device that has no end on the host.
	Mark string
}

// Made is a device that was made.
type Made struct {
	MAC, HostMAC net.HardwareAddr // HostMAC nil without a device on the host
}

// Host is the namespace in which containers have their ports. It is safe for
// concurrent use; devices are made one after the other, as the kernel would.
type Host struct {
	rt     *nlmsg.Commands
	groups sync.Mutex // of changes of rules
	routes routes
}

// Open works in the namespace of the calling thread.
func Open() (*Host, error) {
	rt, err := nlmsg.OpenCommands()
	if err != nil {
		return nil, err
	}
	return &Host{rt: rt}, nil
}

// Close ends the work; devices stay.
func (h *Host) Close() {
	h.routes.close()
	h.rt.Close()
}

// A maker makes devices of one kind.
type maker interface {
	// prepare makes what containers of the network share.
	prepare(*Host, *cni.Conf) error
	// links are the device, and what belongs to it on the host.
	make(*Host, Spec, Made) error
	// macs are what the ends are to have; nil leaves it to the kernel.
	macs(Spec) Made
	// routed kinds have no neighbours but the host.
	routed() bool
}

// What a kind has on the host beside devices.
type (
	remover interface {
		remove(*Host, *cni.Network, string) error
	} // a container's, before its device
	sweeper    interface{ sweep(*Host, *cni.Conf) error }     // those of devices that are gone
	unpreparer interface{ unprepare(*Host, *cni.Conf) error } // all, if nobody uses it
	checker    interface{ check(*Host, Attached) error }      // whether a container's is there
)

var makers = map[string]maker{
	cni.Veth:      veth{},
	cni.PtP:       ptp{},
	cni.Netkit:    netkit{},
	cni.Macvlan:   above{cni.Macvlan},
	cni.Macvtap:   above{cni.Macvtap},
	cni.IPvlan:    above{cni.IPvlan},
	cni.IPvtap:    above{cni.IPvtap},
	cni.TCRouting: tcRouting{},
	cni.OVS:       ovs{},
}

// Prepare makes what all containers of a network share, if it is missing.
func (h *Host) Prepare(c *cni.Conf) error {
	if err := makers[c.Kind].prepare(h, c); err != nil {
		return fmt.Errorf("prepare network %q: %w", c.Name, err)
	}
	if err := h.forward(c); err != nil {
		return fmt.Errorf("prepare network %q: %w", c.Name, err)
	}
	if err := h.KeepRules(c); err != nil {
		return fmt.Errorf("prepare network %q: %w", c.Name, err)
	}
	return nil
}

// Make makes a device with its addresses and routes, or nothing.
func (h *Host) Make(s Spec) (made Made, err error) {
	m := makers[s.Conf.Kind]
	made = m.macs(s)
	if err := m.make(h, s, made); err != nil {
		return made, s.explain(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Remove(&s.Conf.Network, s.Host), s.inside(func() error { return RemoveInside(s.Name) }))
		}
	}()
	if err := s.inside(func() error { return configure(s, m.routed()) }); err != nil {
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

// SharedIndex is the number of what a network's containers hang at, its bridge
// or master, in the namespace of the calling thread; 0 if there is none.
func SharedIndex(n *cni.Network) int {
	name := cmp.Or(n.Bridge, n.Master)
	if name == "" {
		return 0
	}
	index, err := indexOf(name)
	if err != nil {
		return 0
	}
	return index
}

// inside calls fn in the container's namespace.
func (s Spec) inside(fn func() error) error {
	return netns.Do(fmt.Sprintf("/proc/self/fd/%d", s.Netns.Fd()), fn)
}

// settle returns when the host can send to the container: its end of a pair has
// a carrier since the container's is up, and a bridge since it has such a port.
func (h *Host) settle(s Spec) error {
	var todo []nlmsg.Command
	for _, name := range []string{s.Host, s.Conf.Bridge} {
		if name == "" {
			continue
		}
		if index, err := indexOf(name); err == nil {
			todo = append(todo, settle(index))
		}
	}
	if len(todo) == 0 {
		return nil
	}
	return h.rt.Do(todo...)
}

// Remove takes a container's device away by its end on the host, and what else
// is there for it. Kinds that have none end with RemoveInside.
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
	return h.rt.Do(delLink(host))
}

// Sweep takes away what devices of a network left on the host that are gone.
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

// HasHost tells whether devices of a kind have an end on the host.
func HasHost(kind string) bool {
	_, without := makers[kind].(above)
	return !without
}

// RemoveInside takes the device away in the namespace of the calling thread; one
// that is gone is no error.
func RemoveInside(name string) error {
	rt, err := nlmsg.OpenCommands()
	if err != nil {
		return err
	}
	defer rt.Close()
	return rt.Do(delLink(name))
}

// configure gives the device addresses and routes, in the container.
func configure(s Spec, routed bool) error {
	rt, err := nlmsg.OpenCommands()
	if err != nil {
		return err
	}
	defer rt.Close()
	index, err := indexOf(s.Name)
	if err != nil {
		return err
	}
	todo := []nlmsg.Command{setUp(index)}
	if s.Loopback {
		todo = append(todo, setUp(1))
	}
	if s.Mark != "" {
		todo = append(todo, setAlias(index, s.Mark))
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
		gw, ok := gatewayOf(s.Conf.IPAM.Routes[i].GW, dst, s.Leases)
		if !ok {
			return fmt.Errorf("add route to %v: there is no gateway of its family", dst)
		}
		todo = append(todo, addRoute(index, dst, gw))
	}
	if err := rt.Do(todo...); err != nil {
		return err
	}
	if s.Conf.Tap {
		return addTap(s)
	}
	return nil
}

// addressOf is one address. Where only the host is a neighbour, the rest of the
// subnet is behind the gateway.
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

// gatewayOf is where a route leads: what it says, or the gateway of its family.
func gatewayOf(named string, dst netip.Prefix, leases []ipam.Lease) (netip.Addr, bool) {
	if named != "" {
		gw, err := netip.ParseAddr(named)
		return gw, err == nil
	}
	for _, l := range leases {
		if l.Gateway.Is4() == dst.Addr().Is4() {
			return l.Gateway, true
		}
	}
	return netip.Addr{}, false
}

// macsOf derives MAC addresses from the first address: whoever gets it next has
// the same, so that no neighbour's table is wrong. The host's begins with fe,
// lest a bridge takes it for its own.
func macsOf(leases []ipam.Lease) Made {
	if len(leases) == 0 {
		return Made{}
	}
	b := leases[0].Address.Addr().AsSlice()
	b = b[len(b)-4:]
	return Made{MAC: append(net.HardwareAddr{0x0a, 0x58}, b...), HostMAC: append(net.HardwareAddr{0xfe, 0x58}, b...)}
}

// explain says in clear words what is wrong with a device that cannot be made.
func (s Spec) explain(err error) error {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("kind %s: %w (%v); choose another kind", s.Conf.Kind, ErrNoKernel, err)
	case errors.Is(err, unix.EEXIST) && s.inside(func() error { _, err := indexOf(s.Name); return err }) == nil:
		return fmt.Errorf("the container's namespace has a device %s already: want another name, or another namespace (%w)", s.Name, err)
	}
	return err
}

// Unprepare takes away what Prepare has made, as far as nobody else uses it.
func (h *Host) Unprepare(c *cni.Conf) error {
	if err := errors.Join(unmasquerade(c), unisolate(c)); err != nil {
		return err
	}
	if u, ok := makers[c.Kind].(unpreparer); ok {
		return u.unprepare(h, c)
	}
	return nil
}
