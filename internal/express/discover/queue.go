package discover

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// Question is what a queue asks of a packet and express packets lack, conntrack's entry or
// the route, or what they alone have: the sender's socket, of which IP relieves those that it
// forwards (skb_orphan in the kernel's net/ipv4/ip_input.c), and the port as input device,
// where those of the regular path have the bridge.
type Question struct {
	At  string // "qdisc cake at eth0, by nat"; "" is none
	All bool   // it asks of every packet; else express packets with translated addresses answer otherwise
}

// worse returns the question that concerns more packets.
func (q Question) worse(other Question) Question {
	if q.At == "" || other.All && !q.All {
		return other
	}
	return q
}

// readQuestion finds what the qdiscs and egress filters of the devices ask. Cake at a container's
// port only shares among the container's own connections.
func (s *Scanner) readQuestion(isPort func(ifindex int) bool) (found Question, err error) {
	var blocks []tcmsg // that may have filters
	dump := nlmsg.Request{Type: unix.RTM_GETQDISC, Flags: unix.NLM_F_DUMP, Data: make([]byte, nl.SizeofTcMsg)}
	err = s.sock.Request(dump, func(m nlmsg.Message) {
		q, ok := parseTC(m)
		dev, known := s.devices[q.ifindex]
		if !ok || m.Type != unix.RTM_NEWQDISC || !known {
			return
		}
		switch q.kind {
		case "cake", "cake_mq":
			if q.asksNAT() && !isPort(q.ifindex) {
				found = found.worse(Question{At: fmt.Sprintf("qdisc %s at %s, by nat", q.kind, dev.Attrs().Name)})
			}
		case "etf", "taprio":
			found = found.worse(Question{At: fmt.Sprintf("qdisc %s at %s, by the sender's socket", q.kind, dev.Attrs().Name), All: true})
		case "clsact":
			q.handle = netlink.HANDLE_MIN_EGRESS
		case "ingress", "noqueue", "mq", "pfifo_fast", "pfifo", "bfifo", "fq":
			return // without filters that packets pass when they leave
		}
		q.options = nil
		blocks = append(blocks, q)
	})
	if err != nil {
		return found, fmt.Errorf("list qdiscs: %w", err)
	}
	classes, looked := []tcmsg(nil), 0
	for _, q := range blocks {
		if slices.Contains(noClassFilters, q.kind) {
			continue
		}
		of, err := s.classesOf(q)
		if err != nil {
			return found, err
		}
		if looked += len(of); looked > mostClasses {
			at := fmt.Sprintf("qdisc %s at %s, which has more than %d classes", q.kind, s.devices[q.ifindex].Attrs().Name, mostClasses)
			return found.worse(Question{At: at, All: true}), nil
		}
		classes = append(classes, of...)
	}
	for _, b := range append(blocks, classes...) {
		data := (&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(b.ifindex), Parent: b.handle}).Serialize()
		err := s.sock.Request(nlmsg.Request{Type: unix.RTM_GETTFILTER, Flags: unix.NLM_F_DUMP, Data: data}, func(m nlmsg.Message) {
			f, ok := parseTC(m)
			if what, all := f.asks(); ok && what != "" {
				found = found.worse(Question{At: fmt.Sprintf("%s filter at %s, by %s", f.kind, s.devices[b.ifindex].Attrs().Name, what), All: all})
			}
		})
		if errors.Is(err, unix.EMSGSIZE) { // as by fw without handles (fw_walk in the kernel's net/sched/cls_fw.c)
			found = found.worse(Question{At: fmt.Sprintf("filters at %s, which the kernel does not list", s.devices[b.ifindex].Attrs().Name), All: true})
			continue
		}
		if err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EINVAL) { // gone, or no filters there
			return found, fmt.Errorf("list filters of device %d: %w", b.ifindex, err)
		}
	}
	return found, nil
}

// noClassFilters are qdiscs whose classes have no filters, only the qdisc itself (tcf_block of
// their Qdisc_class_ops in the kernel's net/sched). Those of htb, hfsc, cbq and atm have.
var noClassFilters = []string{
	"cake", "cake_mq", "clsact", "drr", "dualpi2", "ets", "fq_codel", "fq_pie", "mqprio", "multiq", "prio", "qfq", "sfb", "sfq", "taprio",
}

// mostClasses bounds the classes whose filters are looked at.
const mostClasses = 1024

// classesOf lists the classes of a qdisc.
func (s *Scanner) classesOf(q tcmsg) (all []tcmsg, err error) {
	data := (&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(q.ifindex), Parent: q.handle}).Serialize()
	err = s.sock.Request(nlmsg.Request{Type: unix.RTM_GETTCLASS, Flags: unix.NLM_F_DUMP, Data: data}, func(m nlmsg.Message) {
		if c, ok := parseTC(m); ok && m.Type == unix.RTM_NEWTCLASS && c.handle != q.handle {
			c.options = nil
			all = append(all, c)
		}
	})
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return nil, fmt.Errorf("list classes of device %d: %w", q.ifindex, err)
	}
	return all, nil
}

// tcmsg is a qdisc, a class or a filter.
type tcmsg struct {
	ifindex int
	handle  uint32
	kind    string
	options []byte // valid while its message is
}

func parseTC(m nlmsg.Message) (t tcmsg, ok bool) {
	if len(m.Data) < nl.SizeofTcMsg {
		return t, false
	}
	t.ifindex = int(int32(binary.NativeEndian.Uint32(m.Data[4:])))
	t.handle = binary.NativeEndian.Uint32(m.Data[8:])
	for typ, data := range nlmsg.Attributes(m.Data[nl.SizeofTcMsg:]) {
		switch typ {
		case unix.TCA_KIND:
			t.kind = string(bytes.TrimRight(data, "\x00"))
		case unix.TCA_OPTIONS:
			t.options = data
		}
	}
	return t, true
}

// option is one of the options, nil if there is none.
func (t tcmsg) option(option uint16) []byte {
	for typ, data := range nlmsg.Attributes(t.options) {
		if typ == option {
			return data
		}
	}
	return nil
}

// number is an option of 32 bits, 0 if there is none.
func (t tcmsg) number(option uint16) uint32 {
	if data := t.option(option); len(data) == 4 {
		return binary.NativeEndian.Uint32(data)
	}
	return 0
}

// asksNAT reports whether cake asks conntrack for the addresses before translation. Without
// an entry in the packet it looks one up by the packet's addresses, which finds that of a
// connection whose addresses are not translated (nf_conntrack_get_tuple_skb in the kernel's
// net/netfilter/nf_conntrack_core.c).
func (t tcmsg) asksNAT() bool {
	const nat = 11 // TCA_CAKE_NAT
	return t.number(nat) != 0
}

// asks says what a filter asks, "" for nothing, and whether of all packets. The actions ct,
// ctinfo and connmark look up an entry as cake does; route, the keys of flow and flower, and
// targets of iptables (before Linux 6.8) do not, and neither does indev.
func (t tcmsg) asks() (what string, all bool) {
	const (
		flowKeys = 1 // TCA_FLOW_KEYS
		// FLOW_KEY_NFCT to FLOW_KEY_NFCT_PROTO_DST, FLOW_KEY_RTCLASSID, FLOW_KEY_SKUID and FLOW_KEY_SKGID.
		ofConntrack, ofRoute, ofSocket             = 0x1f << 8, 1 << 13, 3 << 14
		flowerConntrack, flowerConntrackEnd        = 91, 98 // TCA_FLOWER_KEY_CT_STATE to TCA_FLOWER_KEY_CT_LABELS_MASK
		basicEmatches, flowEmatches         uint16 = 2, 11  // TCA_BASIC_EMATCHES, TCA_FLOW_EMATCHES
	)
	indev := map[string]uint16{"flower": 2, "fw": 3, "u32": 8}[t.kind] // TCA_*_INDEV
	if indev != 0 && t.option(indev) != nil {
		return "the input device", true
	}
	switch t.kind {
	case "route":
		return "the route's realm", true
	case "cgroup":
		return "the sender's cgroup", true
	case "flower":
		for key := uint16(flowerConntrack); key <= flowerConntrackEnd; key++ {
			if t.option(key) != nil {
				return "conntrack's keys", true
			}
		}
	case "basic":
		what = askingEmatch(t.option(basicEmatches))
	case "flow":
		switch keys := t.number(flowKeys); {
		case keys&ofRoute != 0:
			return "key rt-classid", true
		case keys&ofConntrack != 0:
			return "conntrack's keys", true
		case keys&ofSocket != 0:
			return "the sender's user", true
		}
		what = askingEmatch(t.option(flowEmatches))
	}
	if what != "" {
		return what, true
	}
	for _, action := range []string{"ct", "ctinfo", "connmark", "ipt", "xt"} {
		const kind = 1 // TCA_ACT_KIND
		if bytes.Contains(t.options, nlmsg.Attr(kind, []byte(action+"\x00"))) {
			return "action " + action, action == "ipt" || action == "xt"
		}
	}
	return "", false
}

// askingEmatch finds an extended match that asks the route, the socket, or whom the port took the
// packet to be for (pkt_type, which IP sets when it forwards), "" if there is none:
// one of iptables (policy), or one of metadata that compares such a value with another one.
func askingEmatch(tree []byte) string {
	const list, header, kindIPT, kindMeta = 2, 8, 9, 4 // TCA_EMATCH_TREE_LIST, struct tcf_ematch_hdr, TCF_EM_*
	const metaHeader, right, idMask = 1, 4, 0x7ff      // TCA_EM_META_HDR, in struct tcf_meta_hdr, TCF_META_ID_MASK
	const packetType, rtClassID, vlanTag = 8, 14, 46   // TCF_META_ID_*: between the latter are those of routes and sockets
	for typ, matches := range nlmsg.Attributes(tree) {
		if typ != list {
			continue
		}
		for _, match := range nlmsg.Attributes(matches) {
			if len(match) < header {
				continue
			}
			switch binary.NativeEndian.Uint16(match[2:]) {
			case kindIPT:
				return "ematch ipt"
			case kindMeta:
				for typ, values := range nlmsg.Attributes(match[header:]) {
					for at := 0; typ == metaHeader && at+2 <= len(values); at += right {
						if id := binary.NativeEndian.Uint16(values[at:]) & idMask; id == packetType || id >= rtClassID && id < vlanTag {
							return "ematch meta"
						}
					}
				}
			}
		}
	}
	return ""
}
