package docker

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// As in linux/netfilter/nfnetlink_conntrack.h.
const (
	nfgenmsg        = 4 // bytes of the header
	conntrackGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	conntrackDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2
	tupleOrig       = 1  // CTA_TUPLE_ORIG
	tupleIP         = 1  // CTA_TUPLE_IP
	tupleProto      = 2  // CTA_TUPLE_PROTO
	ipDst4          = 2  // CTA_IP_V4_DST
	ipDst6          = 4  // CTA_IP_V6_DST
	protoNum        = 1  // CTA_PROTO_NUM
	protoDstPort    = 3  // CTA_PROTO_DST_PORT
	zone            = 18 // CTA_ZONE
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
	local, err := localNets()
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
				p.Host.IsUnspecified() && p.Host.Is4() == dst.Is4() && slices.ContainsFunc(local, func(n netip.Prefix) bool { return n.Contains(dst) }))
		}
		if string(nlmsg.Find(proto, protoNum)) == udp && slices.ContainsFunc(ports, published) {
			data := append(m.Data[:nfgenmsg:nfgenmsg], nlmsg.Nested(tupleOrig, tuple)...)
			if in := nlmsg.Find(m.Data[nfgenmsg:], zone); in != nil {
				data = append(data, nlmsg.Attr(zone, in)...)
			}
			stale = append(stale, nlmsg.Command{What: "forget a peer", Type: conntrackDelete, Allow: unix.ENOENT, Data: data})
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

// localNets returns the networks that are this host's own: those of its devices' addresses, and
// those of other local routes.
func localNets() (nets []netip.Prefix, err error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL},
		netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
	if err != nil {
		return nil, fmt.Errorf("list local routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		if p, err := netip.ParsePrefix(r.Dst.String()); err == nil {
			nets = append(nets, p)
		}
	}
	return nets, nil
}
