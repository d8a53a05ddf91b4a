package changes

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// newGeneration is the message that ends every transaction of nftables.
const newGeneration = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN

// openRuleset follows nftables, which iptables-nft uses as well.
func openRuleset(out *output, l limits) (source, error) {
	opts := nlmsg.Options{Family: unix.NETLINK_NETFILTER, Groups: []uint32{unix.NFNLGRP_NFTABLES}, Buffer: l.rules}
	if !out.messages {
		opts.Filter, opts.Buffer = endsOnly(), l.buffer
	}
	sock, err := nlmsg.Open(opts)
	if err != nil {
		return nil, fmt.Errorf("watch nftables: %w", err)
	}
	return &announced{Socket: sock, out: out, what: "nftables", evaluate: out.judgeGeneration}, nil
}

// endsOnly is a filter that passes the end of transactions. The kernel announces
// every object: a set with a million elements would fill the buffer.
func endsOnly() []bpf.Instruction {
	// The type is in host order; the filter loads it in network order.
	typ := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, newGeneration))
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: 4, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(typ), SkipFalse: 1},
		bpf.RetConstant{Val: 1<<32 - 1},
		bpf.RetConstant{Val: 0},
	}
}

func (o *output) judgeGeneration(m nlmsg.Message) (Event, bool) {
	if o.messages {
		o.onStale(Event{Kind: Ruleset, Message: m})
	}
	if m.Type != newGeneration {
		return Event{}, false
	}
	return Event{Kind: Ruleset, Reason: generationReason(m.Data), Stale: true}, true
}

// generationReason returns which generation of the rules a message announces,
// and which program caused it.
func generationReason(b []byte) string {
	var id uint32
	by := "somebody"
	if len(b) >= nlmsg.SizeofNfgenmsg {
		for typ, data := range nlmsg.Attributes(b[nlmsg.SizeofNfgenmsg:]) {
			switch {
			case typ == unix.NFTA_GEN_ID && len(data) == 4:
				id = binary.BigEndian.Uint32(data)
			case typ == unix.NFTA_GEN_PROC_NAME:
				by = string(bytes.TrimRight(data, "\x00"))
			}
		}
	}
	return fmt.Sprintf("nftables generation %d by %s", id, by)
}
