package discover

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Forms of packets, by the names that package netlink gives to ARPHRD_*: an IP
// header first, as a device without addresses has it.
const (
	formNone = "none"
	formPPP  = "ppp"
)

var formRawIP = fmt.Sprintf("unknown%d", unix.ARPHRD_RAWIP)

// whyNotBare says why packets cannot go express by a device without MAC
// addresses, "" if they can. Only those are taken that send whatever they are
// given: a tunnel may want the route that the regular path has found for a packet,
// which an express packet has not.
func whyNotBare(l netlink.Link) string {
	form := l.Attrs().EncapType
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

// pppIsBare reports whether the kernel takes the MAC header off what BPF programs
// redirect to a PPP device: Linux 6.6, and some stable kernels before.
func pppIsBare() bool {
	var u unix.Utsname
	var major, minor int
	if err := unix.Uname(&u); err != nil {
		return false
	}
	_, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	return err == nil && (major > 6 || major == 6 && minor >= 6)
}
