package changes

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// ipsecGroups are the multicast groups of XFRM whose messages may concern packets that are
// sent in the clear: XFRMNLGRP_EXPIRE, _SA, _POLICY and _MIGRATE.
var ipsecGroups = []uint32{2, 3, 4, 7}

// Offsets in struct xfrm_userpolicy_info, xfrm_user_polexpire and xfrm_user_tmpl.
const (
	policyIndex      = 156
	policyHard       = nl.SizeofXfrmUserpolicyInfo
	templateOptional = 50
)

// ipsec follows IPsec. A policy that comes or goes, also when its lifetime ends, may apply
// to connections that are sent in the clear. So may a new security association where a
// policy uses one only if there is one (an optional template, "level use"): elsewhere
// packets that lack one are dropped (net/xfrm/xfrm_policy.c, xfrm_tmpl_resolve_one).
type ipsec struct {
	announced
	ask      *nlmsg.Requests
	optional map[uint32]bool // policies with an optional template, by index
}

// openIPsec returns nil on a kernel without IPsec.
func openIPsec(out *output, l limits) (_ source, err error) {
	x := &ipsec{announced: announced{out: out, what: "IPsec"}}
	x.evaluate, x.lost = x.judge, x.read
	x.Socket, err = nlmsg.Open(nlmsg.Options{Family: unix.NETLINK_XFRM, Groups: ipsecGroups, Buffer: l.buffer})
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil
	}
	if err == nil {
		x.ask, err = nlmsg.OpenRequests(unix.NETLINK_XFRM)
	}
	if err == nil { // it listens already, so no change is missed
		err = x.read()
	}
	if err != nil {
		x.Close()
		return nil, fmt.Errorf("watch IPsec: %w", err)
	}
	return x, nil
}

func (x *ipsec) Close() (err error) {
	if x.Socket != nil {
		err = x.Socket.Close()
	}
	if x.ask != nil {
		err = errors.Join(err, x.ask.Close())
	}
	return err
}

// read reads which policies have an optional template.
func (x *ipsec) read() error {
	const any = 0 // no policy's index
	x.optional = map[uint32]bool{any: true}
	if err := x.ask.Request(nlmsg.Request{Type: uint16(nl.XFRM_MSG_GETPOLICY), Flags: unix.NLM_F_DUMP}, x.note); err != nil {
		return fmt.Errorf("list IPsec policies: %w", err)
	}
	delete(x.optional, any)
	return nil
}

// note notes a policy.
func (x *ipsec) note(m nlmsg.Message) {
	if len(m.Data) < nl.SizeofXfrmUserpolicyInfo {
		return
	}
	x.forget(m.Data)
	for typ, data := range nlmsg.Attributes(m.Data[nl.SizeofXfrmUserpolicyInfo:]) {
		for ; typ == uint16(nl.XFRMA_TMPL) && len(data) >= nl.SizeofXfrmUserTmpl; data = data[nl.SizeofXfrmUserTmpl:] {
			if data[templateOptional] != 0 {
				x.optional[binary.NativeEndian.Uint32(m.Data[policyIndex:])] = true
			}
		}
	}
}

// forget forgets a policy, a struct xfrm_userpolicy_info.
func (x *ipsec) forget(info []byte) {
	if len(info) >= nl.SizeofXfrmUserpolicyInfo {
		delete(x.optional, binary.NativeEndian.Uint32(info[policyIndex:]))
	}
}

// judge evaluates a message. The end of a soft lifetime ends nothing, and no connection
// whose association ends has gone express by it.
func (x *ipsec) judge(m nlmsg.Message) (Event, bool) {
	e := Event{Kind: IPsec, Reason: "IPsec policy added, changed or removed", Stale: true}
	switch nl.XfrmMsgType(m.Type) {
	case nl.XFRM_MSG_NEWPOLICY, nl.XFRM_MSG_UPDPOLICY:
		x.note(m)
	case nl.XFRM_MSG_DELPOLICY:
		for typ, data := range nlmsg.Attributes(m.Data[min(len(m.Data), nl.SizeofXfrmUserpolicyId):]) {
			if typ == uint16(nl.XFRMA_POLICY) {
				x.forget(data)
			}
		}
	case nl.XFRM_MSG_FLUSHPOLICY:
		if err := x.read(); err != nil {
			e.Reason = err.Error()
		}
	case nl.XFRM_MSG_POLEXPIRE:
		if len(m.Data) <= policyHard || m.Data[policyHard] == 0 {
			return Event{}, false
		}
		x.forget(m.Data)
		e.Reason = "IPsec policy has expired"
	case nl.XFRM_MSG_NEWSA, nl.XFRM_MSG_UPDSA:
		e.Reason = "IPsec association added"
		return e, len(x.optional) > 0
	case nl.XFRM_MSG_DELSA, nl.XFRM_MSG_FLUSHSA, nl.XFRM_MSG_EXPIRE:
		return Event{}, false
	}
	return e, true
}
