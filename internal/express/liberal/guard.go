package liberal

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/host/nlmsg"
)

// guard drops the packets of connections that conntrack does not find in its table,
// directly after it has looked: they leave no entry, no later rule judges them, and TCP
// sends them again. Its tables belong to the process (flag owner, Linux 5.12): the kernel
// removes them when the process ends, however it does.
type guard struct{ commands *nlmsg.Commands }

const (
	guardTable = "scon-restore"
	guardSet   = "connections"
	// afterConntrack is the priority that follows conntrack's (NF_IP_PRI_CONNTRACK).
	afterConntrack = -199 & 0xffffffff
	// tableOwned is NFT_TABLE_F_OWNER.
	tableOwned = 2
	// tuplesAtOnce are added in one message, which is bounded to 64 KiB.
	tuplesAtOnce = 512
)

// hooks at which conntrack looks a packet up.
var hooks = []struct {
	name   string
	number uint32
}{{"prerouting", unix.NF_INET_PRE_ROUTING}, {"output", unix.NF_INET_LOCAL_OUT}}

// family is what differs between IPv4 and IPv6.
type family struct {
	number byte   // NFPROTO_*
	source uint32 // of the address in the header
	size   uint32 // of an address
	// keyType is nft(8)'s name of the set's key: four types of 6 bits.
	keyType uint32
}

const (
	typeIPv4, typeIPv6, typeService = 7, 8, 13
)

func familyOf(t conntrack.Tuple) family {
	if t.Src.Addr().Is6() {
		return family{unix.NFPROTO_IPV6, 8, 16, typeIPv6<<18 | typeService<<12 | typeIPv6<<6 | typeService}
	}
	return family{unix.NFPROTO_IPV4, 12, 4, typeIPv4<<18 | typeService<<12 | typeIPv4<<6 | typeService}
}

// openGuard guards connections. It returns when every packet that conntrack looked up
// before is past it.
func openGuard(conns []*conn) (_ *guard, err error) {
	commands, err := nlmsg.OpenCommands(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	g := &guard{commands}
	defer func() {
		if err != nil {
			g.Close()
			err = fmt.Errorf("guard connections by a table of nftables: %w", err)
		}
	}()
	tuples := make(map[family][]conntrack.Tuple)
	for _, c := range conns {
		f := familyOf(c.Tuple)
		tuples[f] = append(tuples[f], c.Tuple, c.entry.Reply)
	}
	for f, of := range tuples {
		if err := g.add(f, of); err != nil {
			return nil, err
		}
	}
	// Netfilter's hooks run in one RCU section: this call waits for those that have begun.
	const membarrierGlobal = 1
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0); errno != 0 {
		return nil, fmt.Errorf("membarrier: %w", errno)
	}
	return g, nil
}

// Close removes the guard.
func (g *guard) Close() { g.commands.Close() }

// add makes the table of a family. A table of family inet would begin to track the other
// family's packets, as its expression ct does.
func (g *guard) add(f family, tuples []conntrack.Tuple) error {
	all := []nlmsg.Command{
		f.command(unix.NFT_MSG_NEWTABLE, text(unix.NFTA_TABLE_NAME, guardTable), nlmsg.Be32(unix.NFTA_TABLE_FLAGS, tableOwned)),
		f.command(unix.NFT_MSG_NEWSET, text(unix.NFTA_SET_TABLE, guardTable), text(unix.NFTA_SET_NAME, guardSet),
			nlmsg.Be32(unix.NFTA_SET_KEY_TYPE, f.keyType), nlmsg.Be32(unix.NFTA_SET_KEY_LEN, 2*(f.size+4)), nlmsg.Be32(unix.NFTA_SET_ID, 1)),
	}
	for _, h := range hooks {
		all = append(all,
			f.command(unix.NFT_MSG_NEWCHAIN, text(unix.NFTA_CHAIN_TABLE, guardTable), text(unix.NFTA_CHAIN_NAME, h.name),
				text(unix.NFTA_CHAIN_TYPE, "filter"), nlmsg.Nested(unix.NFTA_CHAIN_HOOK,
					nlmsg.Be32(unix.NFTA_HOOK_HOOKNUM, h.number), nlmsg.Be32(unix.NFTA_HOOK_PRIORITY, afterConntrack))),
			f.command(unix.NFT_MSG_NEWRULE, text(unix.NFTA_RULE_TABLE, guardTable), text(unix.NFTA_RULE_CHAIN, h.name), f.rule()))
	}
	if err := g.commit(all...); err != nil {
		return err
	}
	for some := range slices.Chunk(tuples, tuplesAtOnce) {
		var elements []byte
		for _, t := range some {
			elements = append(elements, nlmsg.Nested(unix.NFTA_LIST_ELEM,
				nlmsg.Nested(unix.NFTA_SET_ELEM_KEY, nlmsg.Attr(unix.NFTA_DATA_VALUE, key(t))))...)
		}
		err := g.commit(f.command(unix.NFT_MSG_NEWSETELEM, text(unix.NFTA_SET_ELEM_LIST_TABLE, guardTable),
			text(unix.NFTA_SET_ELEM_LIST_SET, guardSet), nlmsg.Nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, elements)))
		if err != nil {
			return err
		}
	}
	return nil
}

// key is a tuple as the set has it: each part begins at a register of 4 bytes.
func key(t conntrack.Tuple) (k []byte) {
	for _, end := range [...]netip.AddrPort{t.Src, t.Dst} {
		k = append(k, end.Addr().AsSlice()...)
		k = append(k, byte(end.Port()>>8), byte(end.Port()), 0, 0)
	}
	return k
}

// rule returns the expressions of
//
//	meta l4proto tcp tcp flags & syn == 0 ct state & (established | related) == 0
//	ip saddr . tcp sport . ip daddr . tcp dport @connections drop
//
// A SYN begins another connection.
func (f family) rule() []byte {
	const known = 1<<1 | 1<<2 // NF_CT_STATE_BIT of IP_CT_ESTABLISHED and IP_CT_RELATED
	const first = unix.NFT_REG32_00
	none := []byte{0, 0, 0, 0}
	established := binary.NativeEndian.AppendUint32(nil, known)
	return nlmsg.Nested(unix.NFTA_RULE_EXPRESSIONS,
		expression("meta", nlmsg.Be32(unix.NFTA_META_DREG, first), nlmsg.Be32(unix.NFTA_META_KEY, unix.NFT_META_L4PROTO)),
		equal([]byte{unix.IPPROTO_TCP}),
		load(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 13, 1, first), // the flags
		masked([]byte{2}), equal(none[:1]),
		expression("ct", nlmsg.Be32(unix.NFTA_CT_DREG, first), nlmsg.Be32(unix.NFTA_CT_KEY, unix.NFT_CT_STATE)),
		masked(established), equal(none),
		load(unix.NFT_PAYLOAD_NETWORK_HEADER, f.source, f.size, first),
		load(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 2, first+f.size/4),
		load(unix.NFT_PAYLOAD_NETWORK_HEADER, f.source+f.size, f.size, first+f.size/4+1),
		load(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, first+f.size/2+1),
		expression("lookup", text(unix.NFTA_LOOKUP_SET, guardSet), nlmsg.Be32(unix.NFTA_LOOKUP_SREG, first), nlmsg.Be32(unix.NFTA_LOOKUP_SET_ID, 1)),
		expression("immediate", nlmsg.Be32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT),
			nlmsg.Nested(unix.NFTA_IMMEDIATE_DATA, nlmsg.Nested(unix.NFTA_DATA_VERDICT, nlmsg.Be32(unix.NFTA_VERDICT_CODE, 0)))), // NF_DROP
	)
}

// load reads a part of a header into a register.
func load(base, offset, size, register uint32) []byte {
	return expression("payload", nlmsg.Be32(unix.NFTA_PAYLOAD_DREG, register), nlmsg.Be32(unix.NFTA_PAYLOAD_BASE, base),
		nlmsg.Be32(unix.NFTA_PAYLOAD_OFFSET, offset), nlmsg.Be32(unix.NFTA_PAYLOAD_LEN, size))
}

// masked clears all other bits of the first register.
func masked(bits []byte) []byte {
	return expression("bitwise", nlmsg.Be32(unix.NFTA_BITWISE_SREG, unix.NFT_REG32_00), nlmsg.Be32(unix.NFTA_BITWISE_DREG, unix.NFT_REG32_00),
		nlmsg.Be32(unix.NFTA_BITWISE_LEN, uint32(len(bits))), value(unix.NFTA_BITWISE_MASK, bits), value(unix.NFTA_BITWISE_XOR, make([]byte, len(bits))))
}

// equal ends the rule unless the first register has a value.
func equal(want []byte) []byte {
	return expression("cmp", nlmsg.Be32(unix.NFTA_CMP_SREG, unix.NFT_REG32_00), nlmsg.Be32(unix.NFTA_CMP_OP, unix.NFT_CMP_EQ), value(unix.NFTA_CMP_DATA, want))
}

func value(attr uint16, data []byte) []byte {
	return nlmsg.Nested(attr, nlmsg.Attr(unix.NFTA_DATA_VALUE, data))
}

func expression(name string, attrs ...[]byte) []byte {
	return nlmsg.Nested(unix.NFTA_LIST_ELEM, text(unix.NFTA_EXPR_NAME, name), nlmsg.Nested(unix.NFTA_EXPR_DATA, attrs...))
}

// text returns an attribute that is a string.
func text(attr uint16, s string) []byte { return nlmsg.Attr(attr, append([]byte(s), 0)) }

// command is a request to nftables.
func (f family) command(msg uint16, attrs ...[]byte) nlmsg.Command {
	return nlmsg.Command{
		What: "nftables", Type: unix.NFNL_SUBSYS_NFTABLES<<8 | msg, Flags: unix.NLM_F_CREATE,
		Data: slices.Concat([]byte{f.number, unix.NFNETLINK_V0, 0, 0}, slices.Concat(attrs...)),
	}
}

// commit sends requests as one transaction.
func (g *guard) commit(all ...nlmsg.Command) error {
	frame := nlmsg.Command{
		What: "nftables", Type: unix.NFNL_MSG_BATCH_BEGIN, Frame: true,
		Data: []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
	}
	all = append([]nlmsg.Command{frame}, all...)
	frame.Type = unix.NFNL_MSG_BATCH_END
	return g.commands.Do(append(all, frame)...)
}
