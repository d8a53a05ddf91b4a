package discover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// Pair is a container's veth pair: its port and its own device.
type Pair struct {
	port         Port
	outer, inner *Device
}

// OpenPair opens the pair of a port whose container is known.
func OpenPair(p Port, c Container) (*Pair, error) {
	if c.Netns == "" {
		return nil, errors.New("the container's namespace has neither a name nor a process")
	}
	outer, err := openDevice(place{name: p.Name, index: p.Index, peer: p.PeerIndex})
	if err != nil {
		return nil, err
	}
	inner, err := openDevice(place{namespace: c.Netns, pid: c.PID, index: p.PeerIndex, peer: p.Index})
	if err != nil {
		outer.Close()
		return nil, err
	}
	return &Pair{p, outer, inner}, nil
}

// Close closes what OpenPair opened.
func (v *Pair) Close() error {
	return errors.Join(v.outer.Close(), v.inner.Close())
}

// Reception is how a container's device receives.
type Reception struct {
	MAC [6]byte // 0 if it has none of that length
	// Longest is the length from the IP header on of the longest packet, if it is no GSO
	// packet, that reaches it by a bridge.
	Longest uint16
	// Detour is why a packet in the port's queue may be delivered after one
	// that was queued later on the same CPU; "" if that cannot happen.
	Detour string
}

// Longest is the length from the IP header on of the longest packet, if it is no GSO packet,
// that a bridge, or a veth pair, passes to a device with that MTU: there is room for a VLAN's
// tag (net/core/dev.c, is_skb_forwardable).
func Longest(mtu int) uint16 {
	const vlanTag = 4
	return uint16(min(mtu+vlanTag, math.MaxUint16))
}

// Reception reads both ends of the pair; mtu is that of the outer one.
func (v *Pair) Reception(s *nlmsg.Requests, mtu int) (r Reception, err error) {
	inside, err := readInner(s, v.port.PeerNSID, v.port.PeerIndex)
	if err != nil {
		return r, err
	}
	r.MAC = inside.mac
	if v.port.Kind != Netkit { // only veth checks the receiver's
		mtu = min(mtu, inside.mtu)
	}
	r.Longest = Longest(mtu)
	switch {
	case inside.xdp:
		r.Detour = "an XDP program at the container's device"
	case inside.enslaved:
		r.Detour = "the container's device has a master, which may be a bond with an XDP program"
	}
	for _, end := range []struct {
		name   string
		device *Device
	}{{v.port.Name, v.outer}, {"the container's device", v.inner}} {
		steered, err := end.device.Steers()
		if err != nil {
			return r, fmt.Errorf("read packet steering at %s: %w", end.name, err)
		}
		if steered {
			r.Detour = "receive packet steering (rps_cpus) at " + end.name
		}
	}
	return r, nil
}

// ErrGone means that a container has left meanwhile.
var ErrGone = errors.New("the container is gone")

// Attributes and values of rtnetlink for XDP (linux/if_link.h).
const (
	xdpAttached   = 2 // IFLA_XDP_ATTACHED
	xdpNone       = 0 // XDP_ATTACHED_NONE
	xdpGeneric    = 2 // XDP_ATTACHED_SKB
	skipLinkStats = 1 << 3
)

// inner is what matters of the container's device.
type inner struct {
	mac [6]byte
	mtu int
	xdp bool // it has an XDP program that runs ahead of the network stack
	// enslaved devices of a bond run the bond's XDP program there, which the kernel does
	// not list.
	enslaved bool
}

// readInner reads a device in another namespace, which has an ID here.
func readInner(s *nlmsg.Requests, nsid, index int) (dev inner, err error) {
	e := nlmsg.NewEncoder()
	e.Uint32(unix.IFLA_TARGET_NETNSID, uint32(nsid))
	err = readDevice(s, index, e, func(typ uint16, data []byte) {
		switch {
		case typ == unix.IFLA_ADDRESS && len(data) == len(dev.mac):
			dev.mac = [6]byte(data)
		case typ == unix.IFLA_MTU && len(data) == 4:
			dev.mtu = int(binary.NativeEndian.Uint32(data))
		case typ == unix.IFLA_MASTER:
			dev.enslaved = true
		case typ == unix.IFLA_XDP:
			mode := xdpMode(data)
			dev.xdp = mode != xdpNone && mode != xdpGeneric
		}
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) { // no such namespace, no such device in it
		err = ErrGone
	}
	if err != nil {
		return dev, fmt.Errorf("read device %d of namespace %d: %w", index, nsid, err)
	}
	return dev, nil
}

// HasXDP reports whether a device of this namespace has an XDP program, of whatever
// kind.
func HasXDP(s *nlmsg.Requests, index int) (has bool, err error) {
	err = readDevice(s, index, nlmsg.NewEncoder(), func(typ uint16, data []byte) {
		has = has || typ == unix.IFLA_XDP && xdpMode(data) != xdpNone
	})
	if err != nil {
		return false, fmt.Errorf("read device %d: %w", index, err)
	}
	return has, nil
}

// readDevice calls fn for each attribute of a device. more are attributes of the
// request.
func readDevice(s *nlmsg.Requests, index int, more *nlmsg.Encoder, fn func(typ uint16, data []byte)) error {
	more.Uint32(unix.IFLA_EXT_MASK, skipLinkStats)
	attrs, err := more.Encode()
	if err != nil {
		return err
	}
	header := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(header[4:], uint32(index))
	request := nlmsg.Request{Type: unix.RTM_GETLINK, Data: append(header, attrs...)}
	return s.Request(request, func(m nlmsg.Message) {
		if len(m.Data) < unix.SizeofIfInfomsg {
			return
		}
		for typ, data := range nlmsg.Attributes(m.Data[unix.SizeofIfInfomsg:]) {
			fn(typ, data)
		}
	})
}

// xdpMode parses the attribute IFLA_XDP.
func xdpMode(attribute []byte) (mode byte) {
	for typ, b := range nlmsg.Attributes(attribute) {
		if typ == xdpAttached && len(b) == 1 {
			mode = b[0]
		}
	}
	return mode
}
