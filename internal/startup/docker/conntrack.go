package docker

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// As in linux/netfilter/nfnetlink_conntrack.h.
const (
	nfgenmsg        = 4 // bytes of the header
	conntrackGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	conntrackDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2
	tupleOrig       = 1 // CTA_TUPLE_ORIG
	tupleIP         = 1 // CTA_TUPLE_IP
	tupleProto      = 2 // CTA_TUPLE_PROTO
	ipDst4          = 2 // CTA_IP_V4_DST
	ipDst6          = 4 // CTA_IP_V6_DST
	protoNum        = 1 // CTA_PROTO_NUM
	protoDstPort    = 3 // CTA_PROTO_DST_PORT
	udp             = "\x11"
)

// forgetUDP makes conntrack forget the peers of UDP ports whose publication begins or ends: as
// long as a peer sends, its packets go to where the first one went. What containers and the host
// send to the same ports of others goes on.
func forgetUDP(ports []Port) error {
	ports = slices.DeleteFunc(slices.Clone(ports), func(p Port) bool { return p.Proto != unix.IPPROTO_UDP })
	if len(ports) == 0 {
		return nil
	}
	hosts, err := hostAddrs()
	if err != nil {
		return err
	}
	s, err := nlmsg.OpenRequests(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer s.Close()
	var stale []nlmsg.Command
	all := nlmsg.Request{Type: conntrackGet, Flags: unix.NLM_F_DUMP, Data: make([]byte, nfgenmsg)}
	err = s.Request(all, func(m nlmsg.Message) {
		tuple := nlmsg.Find(m.Data[nfgenmsg:], tupleOrig)
		proto := nlmsg.Find(tuple, tupleProto)
		ip, port := nlmsg.Find(tuple, tupleIP), nlmsg.Find(proto, protoDstPort)
		dst, _ := netip.AddrFromSlice(append(nlmsg.Find(ip, ipDst4), nlmsg.Find(ip, ipDst6)...))
		published := func(p Port) bool {
			return string(port) == string(binary.BigEndian.AppendUint16(nil, p.Port)) && (p.Host == dst ||
				p.Host.IsUnspecified() && p.Host.Is4() == dst.Is4() && (dst.IsLoopback() || hosts[dst]))
		}
		if string(nlmsg.Find(proto, protoNum)) == udp && slices.ContainsFunc(ports, published) {
			stale = append(stale, nlmsg.Command{
				What: "forget a peer", Type: conntrackDelete, Allow: unix.ENOENT,
				Data: append(m.Data[:nfgenmsg:nfgenmsg], nlmsg.Nested(tupleOrig, tuple)...),
			})
		}
	})
	if err != nil {
		return err
	}
	c, err := nlmsg.OpenCommands(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Do(stale...)
}

// hostAddrs returns the addresses of this host's devices.
func hostAddrs() (map[netip.Addr]bool, error) {
	all, err := net.InterfaceAddrs()
	hosts := make(map[netip.Addr]bool, len(all))
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			hosts[p.Addr()] = true
		}
	}
	return hosts, err
}
