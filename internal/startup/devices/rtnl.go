package devices

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// link describes a device to make.
type link struct {
	name   string
	kind   string
	up     bool
	mac    []byte
	mtu    int
	master int                  // ifindex of the bridge
	lower  int                  // IFLA_LINK
	netns  *os.File             // its namespace; nil is the calling thread's
	data   func(*nlmsg.Encoder) // IFLA_INFO_DATA
}

const ifinfoSize = unix.SizeofIfInfomsg

// ifinfo returns the fixed header of messages about devices.
func ifinfo(index int, flags, change uint32) []byte {
	b := make([]byte, ifinfoSize)
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	binary.NativeEndian.PutUint32(b[8:], flags)
	binary.NativeEndian.PutUint32(b[12:], change)
	return b
}

// newLink requests a device that must not exist yet.
func newLink(l link) nlmsg.Command {
	return nlmsg.Command{
		What: fmt.Sprintf("make %s %s", l.kind, l.name), Type: unix.RTM_NEWLINK,
		Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, Data: l.encode(),
	}
}

// vethPair requests a pair in one message. The container's end cannot be up yet, since it
// has no peer when its flags are set.
func vethPair(host, inner link) nlmsg.Command {
	host.kind = "veth"
	host.data = func(e *nlmsg.Encoder) { e.Bytes(vethInfoPeer, inner.encode()) }
	return newLink(host)
}

// netkitPair requests a pair of the kernel's device kind for containers (since 6.7).
func netkitPair(host, inner link, mode uint32) nlmsg.Command {
	host.kind = "netkit"
	host.data = func(e *nlmsg.Encoder) {
		e.Uint32(netkitMode, mode)
		e.Bytes(netkitPeerInfo, inner.encode())
	}
	return newLink(host)
}

// Attributes and values of IFLA_INFO_DATA, as in linux/veth.h and linux/if_link.h.
const (
	vethInfoPeer   = 1 // VETH_INFO_PEER
	netkitPeerInfo = 1 // IFLA_NETKIT_PEER_INFO
	netkitMode     = 5 // IFLA_NETKIT_MODE
	netkitL2       = 0
	netkitL3       = 1
)

// encode encodes the device; the peer of a pair has the same form.
func (l link) encode() []byte {
	var flags uint32
	if l.up {
		flags = unix.IFF_UP
	}
	e := nlmsg.NewEncoder()
	e.String(unix.IFLA_IFNAME, l.name)
	if l.mac != nil {
		e.Bytes(unix.IFLA_ADDRESS, l.mac)
	}
	if l.mtu != 0 {
		e.Uint32(unix.IFLA_MTU, uint32(l.mtu))
	}
	if l.master != 0 {
		e.Uint32(unix.IFLA_MASTER, uint32(l.master))
	}
	if l.lower != 0 {
		e.Uint32(unix.IFLA_LINK, uint32(l.lower))
	}
	if l.netns != nil {
		e.Uint32(unix.IFLA_NET_NS_FD, uint32(l.netns.Fd()))
	}
	if l.kind != "" {
		e.Nested(unix.IFLA_LINKINFO, func(e *nlmsg.Encoder) error {
			e.String(unix.IFLA_INFO_KIND, l.kind)
			if l.data != nil {
				e.Nested(unix.IFLA_INFO_DATA, func(e *nlmsg.Encoder) error {
					l.data(e)
					return nil
				})
			}
			return nil
		})
	}
	return append(ifinfo(0, flags, flags), encoded(e)...)
}

// encoded returns the attributes in e. They have fixed sizes and fit.
func encoded(e *nlmsg.Encoder) []byte {
	b, err := e.Encode()
	if err != nil {
		panic(err)
	}
	return b
}

// settle reads a device. As a side effect the kernel handles a new carrier at once,
// which it would else delay by up to a second.
func settle(name string, index int) nlmsg.Command {
	return nlmsg.Command{What: "read device " + name, Type: unix.RTM_GETLINK, Data: ifinfo(index, 0, 0)}
}

// setUp brings a device up.
func setUp(name string, index int) nlmsg.Command {
	return nlmsg.Command{What: "bring device " + name + " up", Type: unix.RTM_NEWLINK, Data: ifinfo(index, unix.IFF_UP, unix.IFF_UP)}
}

// delLink removes a device by its index, or by its name if that is 0; a missing device is no
// error.
func delLink(index int, name string) nlmsg.Command {
	e := nlmsg.NewEncoder()
	e.String(unix.IFLA_IFNAME, name)
	return nlmsg.Command{What: "remove device " + name, Type: unix.RTM_DELLINK, Data: append(ifinfo(index, 0, 0), encoded(e)...), Allow: unix.ENODEV}
}

// newAddr adds an address to a device.
func newAddr(index int, p netip.Prefix) nlmsg.Command {
	addr := p.Addr()
	b := []byte{family(addr), byte(p.Bits()), 0, 0}
	b = binary.NativeEndian.AppendUint32(b, uint32(index))
	e := nlmsg.NewEncoder()
	e.Bytes(unix.IFA_LOCAL, addr.AsSlice())
	e.Bytes(unix.IFA_ADDRESS, addr.AsSlice())
	if addr.Is6() {
		e.Uint32(unix.IFA_FLAGS, unix.IFA_F_NODAD) // the lease excludes duplicates
	}
	return nlmsg.Command{
		What: fmt.Sprintf("add address %v", p), Type: unix.RTM_NEWADDR,
		Flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE, Data: append(b, encoded(e)...),
	}
}

// newGateways adds those of the host's addresses that are missing to a device that reaches
// containers, with the broadcast address that programs of the host ask for.
func newGateways(index int, all []netip.Prefix) (todo []nlmsg.Command) {
	for _, p := range all {
		m := newAddr(index, p)
		m.Flags, m.Allow = unix.NLM_F_CREATE|unix.NLM_F_EXCL, unix.EEXIST // an address that is there is no news
		if p.Addr().Is4() && p.Bits() < 31 {
			m.Data = append(m.Data, nlmsg.Attr(unix.IFA_BROADCAST, lastOf(p).AsSlice())...)
		}
		todo = append(todo, m)
	}
	return todo
}

// lastOf returns the last address of a subnet.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

// addRoute adds a route of a container after an existing one of another device with the
// same destination: that one stays first. IPv6 routes of equal metric would share the
// traffic, so each device has its own metric.
func addRoute(index int, dst netip.Prefix, gw netip.Addr) nlmsg.Command {
	metric := 0
	if dst.Addr().Is6() {
		metric = ip6Metric + index
	}
	m := routeBy(index, dst, gw, metric)
	m.Flags, m.Allow = unix.NLM_F_CREATE|unix.NLM_F_APPEND, unix.EEXIST
	return m
}

// ip6Metric is the kernel's default metric of IPv6 routes.
const ip6Metric = 1024

// newRoute sets a route out of a device; an invalid gw means on-link.
func newRoute(index int, dst netip.Prefix, gw netip.Addr) nlmsg.Command {
	return routeBy(index, dst, gw, 0)
}

// routeBy is newRoute with a metric, 0 for the kernel's.
func routeBy(index int, dst netip.Prefix, gw netip.Addr, metric int) nlmsg.Command {
	scope := byte(unix.RT_SCOPE_UNIVERSE)
	if !gw.IsValid() {
		scope = unix.RT_SCOPE_LINK
	}
	b := []byte{family(dst.Addr()), byte(dst.Bits()), 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, scope, unix.RTN_UNICAST, 0, 0, 0, 0}
	e := nlmsg.NewEncoder()
	if dst.Bits() > 0 {
		e.Bytes(unix.RTA_DST, dst.Addr().AsSlice())
	}
	if gw.IsValid() {
		e.Bytes(unix.RTA_GATEWAY, gw.AsSlice())
	}
	e.Uint32(unix.RTA_OIF, uint32(index))
	if metric != 0 {
		e.Uint32(unix.RTA_PRIORITY, uint32(metric))
	}
	what := fmt.Sprintf("add route to %v", dst)
	if gw.IsValid() {
		what += fmt.Sprintf(" by %v", gw)
	}
	return nlmsg.Command{
		What: what, Type: unix.RTM_NEWROUTE,
		Flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE, Data: append(b, encoded(e)...),
	}
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// indexOf returns a device's ifindex in the namespace of the calling thread.
func indexOf(name string) (int, error) {
	r, err := query(name, unix.SIOCGIFINDEX)
	if err != nil {
		return 0, err
	}
	return int(r.Uint32()), nil
}

// IsUp reports whether that namespace has a device, and the device is up.
func IsUp(name string) bool {
	r, err := query(name, unix.SIOCGIFFLAGS)
	return err == nil && r.Uint16()&unix.IFF_UP != 0
}

// query asks for a property of a device there.
func query(name string, what uint) (*unix.Ifreq, error) {
	r, err := unix.NewIfreq(name)
	if err != nil {
		return nil, fmt.Errorf("device %q: %w", name, err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("find device %s: %w", name, err)
	}
	defer unix.Close(fd)
	if err := unix.IoctlIfreq(fd, what, r); err != nil {
		return nil, fmt.Errorf("find device %s: %w", name, err)
	}
	return r, nil
}
