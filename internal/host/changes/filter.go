package changes

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/internal/host/tcfilter"
)

// filter evaluates a message about a tc filter. SCON's own are ignored, unless
// another program removes them.
func (k *known) filter(m nlmsg.Message) (Event, bool) {
	f, ok := tcfilter.Parse(m.Data)
	if !ok || f.Own() && added(m.Type) {
		return Event{}, false
	}
	at := k.name(int32(f.Ifindex))
	if f.Shared() {
		f.Ifindex, at = 0, "a block of devices"
	}
	return Event{
		Kind:     Filter,
		Ifindex:  f.Ifindex,
		Reason:   fmt.Sprintf("%v on %s %s", f, at, verb(m.Type)),
		Topology: true,
		Stale:    !f.Own(),
	}, true
}

// qdisc evaluates a message about a qdisc. A qdisc that only holds filters
// decides nothing, but its filters may go with it, or come with it from a
// block.
func (k *known) qdisc(m nlmsg.Message) (Event, bool) {
	if len(m.Data) < nl.SizeofTcMsg {
		return Event{}, false
	}
	index := int32(binary.NativeEndian.Uint32(m.Data[4:]))
	kind, shares := "", false
	for typ, data := range nlmsg.Attributes(m.Data[nl.SizeofTcMsg:]) {
		switch typ {
		case unix.TCA_KIND:
			kind = string(bytes.TrimRight(data, "\x00"))
		case unix.TCA_INGRESS_BLOCK, unix.TCA_EGRESS_BLOCK:
			shares = true
		}
	}
	return Event{
		Kind:     Filter,
		Ifindex:  int(index),
		Reason:   fmt.Sprintf("qdisc %s on %s %s", kind, k.name(index), verb(m.Type)),
		Topology: true,
		Stale:    kind != "clsact" && kind != "ingress" || shares,
	}, true
}
