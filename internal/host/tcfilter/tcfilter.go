// Package tcfilter reads tc filters and tcx programs, and separates SCON's own
// from those of others.
package tcfilter

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// ownPrefix is the prefix of the names of SCON's programs, and so of its
// filters.
const ownPrefix = "scon_"

// sizeofTcmsg is the size of struct tcmsg, which attributes follow.
const sizeofTcmsg = nl.SizeofTcMsg

// Filter is one filter of a device.
type Filter struct {
	Ifindex  int
	Handle   uint32 // 0 for all filters of one priority
	Parent   uint32 // the qdisc or class it is on
	Priority uint16
	Kind     string // "bpf", "u32", ...
	Name     string // of the program, if Kind is "bpf"
}

// Own reports whether the filter is SCON's.
func (f Filter) Own() bool {
	return f.Kind == "bpf" && strings.HasPrefix(f.Name, ownPrefix)
}

// Shared reports whether the filter is on a block, which several devices may
// share. The message does not name them.
func (f Filter) Shared() bool {
	const magicBlock = -1 // TCM_IFINDEX_MAGIC_BLOCK
	return f.Ifindex == magicBlock
}

// String names a filter as tc(8) does.
func (f Filter) String() string {
	s := fmt.Sprintf("%s filter, pref %d", f.Kind, f.Priority)
	if f.Name != "" {
		s += " " + f.Name
	}
	return s
}

// Parse parses the payload of an RTM_NEWTFILTER or RTM_DELTFILTER message. It
// reports false if it is too short.
func Parse(b []byte) (f Filter, ok bool) {
	if len(b) < sizeofTcmsg {
		return Filter{}, false
	}
	f.Ifindex = int(int32(binary.NativeEndian.Uint32(b[4:])))
	f.Handle = binary.NativeEndian.Uint32(b[8:])
	f.Parent = binary.NativeEndian.Uint32(b[12:])
	f.Priority = uint16(binary.NativeEndian.Uint32(b[16:]) >> 16)
	var options []byte
	for typ, data := range nlmsg.Attributes(b[sizeofTcmsg:]) {
		switch typ {
		case unix.TCA_KIND:
			f.Kind = text(data)
		case unix.TCA_OPTIONS:
			options = data
		}
	}
	if f.Kind == "bpf" {
		for typ, data := range nlmsg.Attributes(options) {
			if typ == nl.TCA_BPF_NAME {
				f.Name = text(data)
			}
		}
	}
	return f, true
}

// Ingress lists the filters at the ingress of a device, in the namespace of
// the calling thread. A device without clsact or ingress qdisc has none.
func Ingress(ifindex int) ([]Filter, error) {
	return list(ifindex, netlink.HANDLE_MIN_INGRESS)
}

// Egress lists the filters at the egress of a device likewise, without
// those of its other qdiscs.
func Egress(ifindex int) ([]Filter, error) {
	return list(ifindex, netlink.HANDLE_MIN_EGRESS)
}

func list(ifindex int, parent uint32) ([]Filter, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETTFILTER, unix.NLM_F_DUMP)
	req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(ifindex), Parent: parent})
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWTFILTER)
	if err != nil {
		return nil, fmt.Errorf("list filters of device %d: %w", ifindex, err)
	}
	var filters []Filter
	for _, m := range msgs {
		if f, ok := Parse(m); ok && f.Handle != 0 {
			filters = append(filters, f)
		}
	}
	return filters, nil
}

// text returns a string up to its terminating zero byte.
func text(b []byte) string {
	return string(bytes.TrimRight(b, "\x00"))
}
