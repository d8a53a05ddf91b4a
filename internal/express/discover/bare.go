package discover

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Link types of packets, as package netlink names ARPHRD_*: packets begin with
// the IP header at a device without MAC addresses.
const (
	formNone = "none"
	formPPP  = "ppp"
)

var formRawIP = fmt.Sprintf("unknown%d", unix.ARPHRD_RAWIP)

// whyNotBare returns why packets cannot go express by a device without MAC
// addresses, "" if they can. Only devices qualify that transmit what they are
// given: a tunnel without a fixed remote address, and one to a group, needs the route that
// the regular path has found for a packet, which an express packet does not have
// (Linux: net/ipv4/ip_tunnel.c, ip_tunnel_xmit; net/ipv6/ip6_tunnel.c, ip6_tnl_xmit). So
// does ISATAP, which package netlink does not tell from other devices of kind sit.
func whyNotBare(l netlink.Link) string {
	form := l.Attrs().EncapType
	switch l := l.(type) {
	case *netlink.Iptun:
		return whyNotTunnel(l.FlowBased, l.Remote)
	case *netlink.Ip6tnl:
		return whyNotTunnel(l.FlowBased, l.Remote)
	case *netlink.Gretun:
		return whyNotTunnel(l.FlowBased, l.Remote)
	}
	switch l.Type() {
	case "tun", "tuntap", "wireguard", "ovpn", "device", "wwan", "rmnet": // a modem has no kind
		if form == formNone || form == formRawIP {
			return ""
		}
	case "ppp":
		if form == formPPP && pppIsBare() {
			return ""
		}
		return "PPP goes express from Linux 6.6 on"
	}
	return fmt.Sprintf("no MAC addresses, and not known to do without the route of each packet (a device of kind %s)", l.Type())
}

// byRoute is why tunnels stay regular that send each packet where its route says.
const byRoute = "it tunnels each packet to where its route says (external, or without remote address), and an express packet has none"

// isByRoute reports whether a tunnel of IPIP sends each packet to the gateway of its route, as
// Calico's do. Express packets go by it only where they can skip it.
func isByRoute(l *netlink.Iptun) bool {
	return !l.FlowBased && (len(l.Remote) == 0 || l.Remote.IsUnspecified())
}

func whyNotTunnel(external bool, remote net.IP) string {
	if external || len(remote) == 0 || remote.IsUnspecified() || remote.IsMulticast() {
		return byRoute
	}
	return ""
}

// pppIsBare reports whether the kernel removes the MAC header from packets
// that BPF programs redirect to a PPP device: Linux 6.6, and some stable
// kernels before.
func pppIsBare() bool {
	var u unix.Utsname
	var major, minor int
	if err := unix.Uname(&u); err != nil {
		return false
	}
	_, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	return err == nil && (major > 6 || major == 6 && minor >= 6)
}
