package changes

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// groups are the multicast groups of rtnetlink that concern IP.
var groups = []uint32{
	unix.RTNLGRP_LINK,
	unix.RTNLGRP_NEIGH,
	unix.RTNLGRP_TC,
	unix.RTNLGRP_IPV4_IFADDR,
	unix.RTNLGRP_IPV4_ROUTE,
	unix.RTNLGRP_IPV4_RULE,
	unix.RTNLGRP_IPV4_NETCONF,
	unix.RTNLGRP_IPV6_IFADDR,
	unix.RTNLGRP_IPV6_ROUTE,
	unix.RTNLGRP_IPV6_RULE,
	unix.RTNLGRP_IPV6_NETCONF,
	unix.RTNLGRP_NSID,
	unix.RTNLGRP_NEXTHOP,
	unix.RTNLGRP_BRVLAN,
}

// kernel follows rtnetlink.
type kernel struct {
	announced
	ask   *nlmsg.Requests // for the state
	state *known
	later *settled   // nil if nobody asks for stale changes
	lives *lifetimes // nil also on a kernel without IPv6
	macs  *macvlans
}

func openKernel(out *output, l limits) (_ source, err error) {
	k := &kernel{announced: announced{out: out, what: "rtnetlink"}}
	k.evaluate = func(m nlmsg.Message) (Event, bool) {
		e, ok := k.state.evaluate(m)
		if ok && e.early && k.later != nil {
			k.later.add(e)
		}
		if k.macs != nil && (m.Type == unix.RTM_NEWLINK || m.Type == unix.RTM_DELLINK) {
			k.macs.note(int32(e.Ifindex), k.state.devices[int32(e.Ifindex)])
		}
		if k.lives != nil && (m.Type == unix.RTM_NEWROUTE || m.Type == unix.RTM_NEWADDR) && len(m.Data) > 0 && m.Data[0] == unix.AF_INET6 {
			k.lives.note(m)
		}
		return e, ok
	}
	k.lost = k.read
	defer func() {
		if err != nil {
			k.Close()
			err = fmt.Errorf("watch rtnetlink: %w", err)
		}
	}()
	k.Socket, err = nlmsg.Open(nlmsg.Options{Family: unix.NETLINK_ROUTE, Groups: groups, Buffer: l.buffer})
	if err != nil {
		return nil, err
	}
	if k.ask, err = nlmsg.OpenRequests(unix.NETLINK_ROUTE); err != nil {
		return nil, err
	}
	if out.onStale != nil {
		if k.later, err = openSettled(out); err != nil {
			return nil, err
		}
		if k.lives, err = openLifetimes(out); err != nil {
			return nil, err
		}
		if k.macs, err = openMacvlans(out); err != nil {
			return nil, err
		}
	}
	// The socket listens before the state is read, so no change is missed.
	if err := k.read(); err != nil {
		return nil, err
	}
	return k, nil
}

// read reads the state that announcements are compared with.
func (k *kernel) read() (err error) {
	if k.state, err = readKnown(k.ask); err == nil && k.lives != nil {
		err = k.lives.list(0, k.lives.note)
	}
	if err == nil && k.macs != nil {
		for index, d := range k.state.devices {
			k.macs.note(index, d)
		}
	}
	return err
}

func (k *kernel) Close() error {
	var errs []error
	if k.later != nil {
		errs = append(errs, k.later.close())
	}
	if k.lives != nil {
		errs = append(errs, k.lives.close())
	}
	if k.macs != nil {
		errs = append(errs, k.macs.close())
	}
	if k.Socket != nil {
		errs = append(errs, k.Socket.Close())
	}
	if k.ask != nil {
		errs = append(errs, k.ask.Close())
	}
	return errors.Join(errs...)
}

// known is the state that announcements are compared with. The kernel also
// announces what has not changed or does not matter.
type known struct {
	devices    map[int32]device
	ports      map[int32]port
	neighbours map[neighbourKey]MAC
	addresses  map[neighbourKey]addressState
	fdb        map[fdbKey]fdbEntry
	netconf    map[netconfKey]uint32
}

func newKnown() *known {
	return &known{
		devices:    make(map[int32]device),
		ports:      make(map[int32]port),
		neighbours: make(map[neighbourKey]MAC),
		addresses:  make(map[neighbourKey]addressState),
		fdb:        make(map[fdbKey]fdbEntry),
		netconf:    make(map[netconfKey]uint32),
	}
}

// evaluate takes an announcement into the state and returns what it means. It
// reports false if no decision and no topology depends on it.
func (k *known) evaluate(m nlmsg.Message) (Event, bool) {
	switch m.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return k.link(m)
	case unix.RTM_NEWVLAN, unix.RTM_DELVLAN:
		return k.vlan(m)
	case unix.RTM_NEWNSID, unix.RTM_DELNSID:
		return Event{Kind: Link, Reason: "a namespace got or lost its number", Topology: true}, true
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return k.neighbour(m)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return k.address(m)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return k.route(m)
	case unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP:
		return Event{Kind: Route, Reason: "nexthop " + verb(m.Type), Topology: true, Stale: true, early: !added(m.Type)}, true
	case unix.RTM_NEWNEXTHOPBUCKET:
		return Event{Kind: Route, Reason: "a resilient nexthop group moved packets", Stale: true}, true
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return Event{Kind: Rule, Reason: "policy routing rule " + verb(m.Type), Topology: true, Stale: true}, true
	case unix.RTM_NEWNETCONF, unix.RTM_DELNETCONF:
		return k.netconfMessage(m)
	case unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER:
		return k.filter(m)
	case unix.RTM_NEWQDISC, unix.RTM_DELQDISC:
		return k.qdisc(m)
	default:
		return Event{}, false
	}
}

// readKnown reads the state.
func readKnown(ask *nlmsg.Requests) (*known, error) {
	k := newKnown()
	for _, dump := range []struct {
		what   string
		typ    uint16
		family byte
		header int // size of what the request begins with, the family first
	}{
		{"devices", unix.RTM_GETLINK, unix.AF_UNSPEC, unix.SizeofIfInfomsg},
		{"bridge ports", unix.RTM_GETLINK, unix.AF_BRIDGE, unix.SizeofIfInfomsg},
		{"neighbours", unix.RTM_GETNEIGH, unix.AF_INET, unix.SizeofNdMsg},
		{"neighbours of IPv6", unix.RTM_GETNEIGH, unix.AF_INET6, unix.SizeofNdMsg},
		{"addresses", unix.RTM_GETADDR, unix.AF_INET, unix.SizeofIfAddrmsg},
		{"addresses of IPv6", unix.RTM_GETADDR, unix.AF_INET6, unix.SizeofIfAddrmsg},
		{"forwarding tables", unix.RTM_GETNEIGH, unix.AF_BRIDGE, unix.SizeofNdMsg},
		{"settings", unix.RTM_GETNETCONF, unix.AF_INET, sizeofNetconfmsg},
		{"settings of IPv6", unix.RTM_GETNETCONF, unix.AF_INET6, sizeofNetconfmsg},
	} {
		data := make([]byte, dump.header)
		data[0] = dump.family
		// A dump that a change interrupts is harmless: the change is
		// announced.
		err := ask.Request(nlmsg.Request{Type: dump.typ, Flags: unix.NLM_F_DUMP, Data: data}, func(m nlmsg.Message) { k.evaluate(m) })
		if dump.family == unix.AF_INET6 && errors.Is(err, unix.EOPNOTSUPP) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", dump.what, err)
		}
	}
	for index, d := range k.devices {
		d.used = true // for all that is known
		k.devices[index] = d
	}
	return k, nil
}

// added reports whether a message type of rtnetlink announces a new object.
// Each kind has four types, in this order: new, del, get, set.
func added(typ uint16) bool {
	return typ%4 == 0
}

func verb(typ uint16) string {
	if added(typ) {
		return "added or changed"
	}
	return "removed"
}

// native32 reads an integer in host order, 0 if it has another size.
func native32(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}
