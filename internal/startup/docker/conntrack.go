package docker

import (
	"encoding/binary"
	"fmt"
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
	ipv4Dst         = 2 // CTA_IP_V4_DST
	ipv6Dst         = 4 // CTA_IP_V6_DST
	tupleProto      = 2 // CTA_TUPLE_PROTO
	protoNum        = 1 // CTA_PROTO_NUM
	protoDstPort    = 3 // CTA_PROTO_DST_PORT
	udp             = "\x11"
)

// forgetUDP makes conntrack forget the peers of UDP ports whose publication begins or ends: as
// long as a peer sends, its packets go to where the first one went. What goes to the same port of
// another machine stays.
func forgetUDP(ports []Port) error {
	var wanted []string
	for _, p := range ports {
		if p.Proto == unix.IPPROTO_UDP {
			wanted = append(wanted, string(binary.BigEndian.AppendUint16(nil, p.Port)))
		}
	}
	if wanted == nil {
		return nil
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return fmt.Errorf("list this machine's addresses: %w", err)
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
		if string(nlmsg.Find(proto, protoNum)) != udp || !slices.Contains(wanted, string(nlmsg.Find(proto, protoDstPort))) ||
			!isOwn(own, nlmsg.Find(tuple, tupleIP)) {
			return
		}
		stale = append(stale, nlmsg.Command{
			What: "forget a peer", Type: conntrackDelete, Allow: unix.ENOENT,
			Data: append(m.Data[:nfgenmsg:nfgenmsg], nlmsg.Nested(tupleOrig, tuple)...),
		})
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

// isOwn reports whether a tuple's destination is one of a machine's addresses.
func isOwn(own []net.Addr, addrs []byte) bool {
	dst, _ := netip.AddrFromSlice(append(nlmsg.Find(addrs, ipv4Dst), nlmsg.Find(addrs, ipv6Dst)...))
	return slices.ContainsFunc(own, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr() == dst
	})
}
