package changes

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// addressMessage is the kernel's message of an IPv6 address on device 3.
func addressMessage(typ uint16, addr string, flags, lifetime uint32) nlmsg.Message {
	b := make([]byte, unix.SizeofIfAddrmsg)
	b[0], b[1], b[2] = unix.AF_INET6, 64, byte(flags)
	binary.NativeEndian.PutUint32(b[4:], 3)
	attr := func(typ uint16, data []byte) {
		b = binary.NativeEndian.AppendUint16(b, uint16(4+len(data)))
		b = append(binary.NativeEndian.AppendUint16(b, typ), data...)
	}
	attr(unix.IFA_ADDRESS, netip.MustParseAddr(addr).AsSlice())
	attr(unix.IFA_CACHEINFO, binary.NativeEndian.AppendUint32(nil, lifetime))
	attr(unix.IFA_FLAGS, binary.NativeEndian.AppendUint32(nil, flags))
	return nlmsg.Message{Type: typ, Data: b}
}

// Each router advertisement makes the kernel announce addresses again: that makes no
// decision stale, and neither do addresses that no forwarded packet has.
func TestIPv6Addresses(t *testing.T) {
	const there, gone = unix.RTM_NEWADDR, unix.RTM_DELADDR
	k := newKnown()
	for i, step := range []struct {
		m    nlmsg.Message
		news bool
	}{
		{addressMessage(there, "2001:db8::1", unix.IFA_F_TENTATIVE, 1000), true},
		{addressMessage(there, "2001:db8::1", 0, 1000), true},
		{addressMessage(there, "2001:db8::1", 0, 900), false},
		{addressMessage(there, "2001:db8::2", 0, 900), true},
		{addressMessage(there, "2001:db8::1", unix.IFA_F_DEPRECATED, 0), true},
		{addressMessage(gone, "2001:db8::1", unix.IFA_F_DEPRECATED, 0), true},
		{addressMessage(gone, "2001:db8::1", unix.IFA_F_DEPRECATED, 0), false},
		{addressMessage(there, "fe80::1", 0, 1000), false},
		{addressMessage(gone, "fe80::1", 0, 1000), false},
	} {
		e, news := k.evaluate(step.m)
		if news != step.news || news && (!e.Stale || e.Kind != Address || e.Ifindex != 3) {
			t.Errorf("message %d: %+v, %v; want %v", i, e, news, step.news)
		}
	}
}
