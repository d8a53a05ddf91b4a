package devices

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// conn is a route netlink socket with blocking calls: a request is answered
// before the kernel returns from sending it, so nothing waits for the poller.
type conn struct {
	mu  sync.Mutex // one batch at a time
	fd  int
	seq uint32
	buf [8 << 10]byte
}

// dial opens a socket in the network namespace of the calling thread.
func dial() (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	// Acknowledgements without the request in them, and with the kernel's words.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	return &conn{fd: fd}, nil
}

func (c *conn) close() { unix.Close(c.fd) }

// message is a request that the kernel acknowledges.
type message struct {
	what  string // for errors
	typ   uint16
	flags uint16
	data  []byte
	// allow is an error that is none, such as EEXIST.
	allow unix.Errno
}

// do sends messages in one datagram; the kernel carries them out in their
// order. The error is the first one's that was refused.
func (c *conn) do(messages ...message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []byte
	first := c.seq + 1
	for _, m := range messages {
		c.seq++
		out = binary.NativeEndian.AppendUint32(out, uint32(unix.NLMSG_HDRLEN+len(m.data)))
		out = binary.NativeEndian.AppendUint16(out, m.typ)
		out = binary.NativeEndian.AppendUint16(out, m.flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
		out = binary.NativeEndian.AppendUint32(out, c.seq)
		out = binary.NativeEndian.AppendUint32(out, 0)
		out = append(out, m.data...)
		for len(out)%unix.NLMSG_ALIGNTO != 0 {
			out = append(out, 0)
		}
	}
	if err := c.send(out); err != nil {
		return fmt.Errorf("%s: %w", messages[0].what, err)
	}
	var refused error
	for answered := 0; answered < len(messages); {
		n, err := unix.Read(c.fd, c.buf[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: read acknowledgement: %w", messages[answered].what, err)
		}
		for r := range nlmsg.Messages(c.buf[:n]) {
			if r.Type != unix.NLMSG_ERROR || r.Sequence < first {
				continue
			}
			m := messages[r.Sequence-first]
			answered++
			if err := ackError(r.Data); err != nil && refused == nil && !errors.Is(err, m.allow) {
				refused = fmt.Errorf("%s: %w", m.what, err)
			}
		}
	}
	return refused
}

func (c *conn) send(out []byte) error {
	for {
		err := unix.Sendto(c.fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// ackError is the error in an acknowledgement, with the kernel's words if it
// has any.
func ackError(b []byte) error {
	if len(b) < 4 {
		return unix.EBADMSG
	}
	errno := -int32(binary.NativeEndian.Uint32(b))
	if errno <= 0 {
		return nil
	}
	const words = 1 // NLMSGERR_ATTR_MSG
	const header = 4 + unix.NLMSG_HDRLEN
	if len(b) > header {
		for typ, text := range nlmsg.Attributes(b[header:]) {
			if typ == words && len(text) > 1 {
				return fmt.Errorf("%w: %s", unix.Errno(errno), text[:len(text)-1])
			}
		}
	}
	return unix.Errno(errno)
}

// link is a device to make.
type link struct {
	name   string
	kind   string
	up     bool
	mac    []byte
	mtu    int
	master int                             // a bridge's number
	lower  int                             // IFLA_LINK
	netns  *os.File                        // where; nil is here
	data   func(*netlink.AttributeEncoder) // IFLA_INFO_DATA
}

const ifinfoSize = unix.SizeofIfInfomsg

// ifinfo is the fixed part of messages about devices.
func ifinfo(index int, flags, change uint32) []byte {
	b := make([]byte, ifinfoSize)
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	binary.NativeEndian.PutUint32(b[8:], flags)
	binary.NativeEndian.PutUint32(b[12:], change)
	return b
}

// newLink asks for a device that must not exist yet.
func newLink(l link) message {
	return message{
		what: fmt.Sprintf("make %s %s", l.kind, l.name), typ: unix.RTM_NEWLINK,
		flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, data: l.encode(),
	}
}

// encode is the device in its parts; a pair's peer is written the same way.
func (l link) encode() []byte {
	var flags uint32
	if l.up {
		flags = unix.IFF_UP
	}
	e := netlink.NewAttributeEncoder()
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
		e.Nested(unix.IFLA_LINKINFO, func(e *netlink.AttributeEncoder) error {
			e.String(unix.IFLA_INFO_KIND, l.kind)
			if l.data != nil {
				e.Nested(unix.IFLA_INFO_DATA, func(e *netlink.AttributeEncoder) error {
					l.data(e)
					return nil
				})
			}
			return nil
		})
	}
	return append(ifinfo(0, flags, flags), encoded(e)...)
}

// encoded is what was put into e: all of it in the program's own words, so it
// fits.
func encoded(e *netlink.AttributeEncoder) []byte {
	b, err := e.Encode()
	if err != nil {
		panic(err)
	}
	return b
}

// settle asks about a device, upon which the kernel does at once what it would do
// up to a second later after the carrier came: let it send.
func settle(index int) message {
	return message{what: fmt.Sprintf("look at device %d", index), typ: unix.RTM_GETLINK, data: ifinfo(index, 0, 0)}
}

// setUp brings a device up.
func setUp(index int) message {
	return message{what: fmt.Sprintf("bring device %d up", index), typ: unix.RTM_NEWLINK, data: ifinfo(index, unix.IFF_UP, unix.IFF_UP)}
}

// delLink removes a device by its name; one that is gone is no error.
func delLink(name string) message {
	e := netlink.NewAttributeEncoder()
	e.String(unix.IFLA_IFNAME, name)
	return message{what: "remove device " + name, typ: unix.RTM_DELLINK, data: append(ifinfo(0, 0, 0), encoded(e)...), allow: unix.ENODEV}
}

// newAddr gives a device an address.
func newAddr(index int, p netip.Prefix) message {
	addr := p.Addr()
	b := []byte{family(addr), byte(p.Bits()), 0, 0}
	b = binary.NativeEndian.AppendUint32(b, uint32(index))
	e := netlink.NewAttributeEncoder()
	e.Bytes(unix.IFA_LOCAL, addr.AsSlice())
	e.Bytes(unix.IFA_ADDRESS, addr.AsSlice())
	if addr.Is6() {
		e.Uint32(unix.IFA_FLAGS, unix.IFA_F_NODAD) // it is leased to nobody else
	}
	return message{
		what: fmt.Sprintf("add address %v", p), typ: unix.RTM_NEWADDR,
		flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE, data: append(b, encoded(e)...),
	}
}

// addRoute adds a route of a container, after one to the same place by another of
// its devices: that stays, and stays the first. Routes of IPv6 with the same
// metric would share the traffic.
func addRoute(index int, dst netip.Prefix, gw netip.Addr) message {
	metric := 0
	if dst.Addr().Is6() {
		metric = ip6Metric + index
	}
	m := routeBy(index, dst, gw, metric)
	m.flags, m.allow = unix.NLM_F_CREATE|unix.NLM_F_APPEND, unix.EEXIST
	return m
}

// ip6Metric is that of a route of IPv6 without any.
const ip6Metric = 1024

// newRoute sets a route out of a device; gw may be invalid: on the link.
func newRoute(index int, dst netip.Prefix, gw netip.Addr) message { return routeBy(index, dst, gw, 0) }

// routeBy is newRoute with a metric, 0 for the kernel's.
func routeBy(index int, dst netip.Prefix, gw netip.Addr, metric int) message {
	scope := byte(unix.RT_SCOPE_UNIVERSE)
	if !gw.IsValid() {
		scope = unix.RT_SCOPE_LINK
	}
	b := []byte{family(dst.Addr()), byte(dst.Bits()), 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, scope, unix.RTN_UNICAST, 0, 0, 0, 0}
	e := netlink.NewAttributeEncoder()
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
	return message{
		what: what, typ: unix.RTM_NEWROUTE,
		flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE, data: append(b, encoded(e)...),
	}
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// indexOf is a device's number in the namespace of the calling thread.
func indexOf(name string) (int, error) {
	r, err := unix.NewIfreq(name)
	if err != nil {
		return 0, fmt.Errorf("device %q: %w", name, err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("look for device %s: %w", name, err)
	}
	defer unix.Close(fd)
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, r); err != nil {
		return 0, fmt.Errorf("look for device %s: %w", name, err)
	}
	return int(r.Uint32()), nil
}
