package discover

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/nlmsg"
)

// Pair is a container's veth pair: its port and its own device.
type Pair struct {
	port         Port
	outer, inner *Device
}

// OpenPair opens the pair of a port, whose container has been found.
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

// Detour says why a packet in the port's queue may be delivered later than one
// that is behind it in the queue of the same CPU; "" if it is not.
func (v *Pair) Detour(s *nlmsg.Socket) (string, error) {
	for _, end := range []struct {
		name   string
		device *Device
	}{{v.port.Name, v.outer}, {"the container's device", v.inner}} {
		steered, err := end.device.Steers()
		if err != nil {
			return "", fmt.Errorf("looking for packet steering at %s: %w", end.name, err)
		}
		if steered {
			return "receive packet steering (rps_cpus) at " + end.name, nil
		}
	}
	xdp, err := nativeXDP(s, v.port.PeerNSID, v.port.PeerIndex)
	if err != nil {
		return "", err
	}
	if xdp {
		return "an XDP program at the container's device", nil
	}
	return "", nil
}

// Attributes and values of rtnetlink for XDP, as in linux/if_link.h.
const (
	xdpAttached   = 2 // IFLA_XDP_ATTACHED
	xdpNone       = 0 // XDP_ATTACHED_NONE
	xdpGeneric    = 2 // XDP_ATTACHED_SKB
	skipLinkStats = 1 << 3
)

// nativeXDP reports whether a device in another namespace, which has a number,
// has an XDP program that runs ahead of the network stack.
func nativeXDP(s *nlmsg.Socket, nsid, index int) (found bool, err error) {
	attrs, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.IFLA_TARGET_NETNSID, Data: binary.NativeEndian.AppendUint32(nil, uint32(nsid))},
		{Type: unix.IFLA_EXT_MASK, Data: binary.NativeEndian.AppendUint32(nil, skipLinkStats)},
	})
	if err != nil {
		return false, err
	}
	header := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(header[4:], uint32(index))
	request := netlink.Message{Header: netlink.Header{Type: unix.RTM_GETLINK}, Data: append(header, attrs...)}
	err = s.Request(request, func(m nlmsg.Message) {
		if len(m.Data) < unix.SizeofIfInfomsg {
			return
		}
		for typ, xdp := range nlmsg.Attributes(m.Data[unix.SizeofIfInfomsg:]) {
			if typ != unix.IFLA_XDP {
				continue
			}
			for typ, b := range nlmsg.Attributes(xdp) {
				if typ == xdpAttached && len(b) == 1 {
					found = b[0] != xdpNone && b[0] != xdpGeneric
				}
			}
		}
	})
	if err != nil {
		return false, fmt.Errorf("looking for XDP at device %d of namespace %d: %w", index, nsid, err)
	}
	return found, nil
}
