package nfhooks

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// The kernel's include/uapi/linux/netfilter/nfnetlink_hook.h.
const (
	subsysHook = 12 // NFNL_SUBSYS_HOOK
	msgHookGet = 0  // NFNL_MSG_HOOK_GET

	attrHookNum   = 1 // NFNLA_HOOK_HOOKNUM, __be32
	attrPriority  = 2 // NFNLA_HOOK_PRIORITY, __be32
	attrFunction  = 4 // NFNLA_HOOK_FUNCTION_NAME
	attrModule    = 5 // NFNLA_HOOK_MODULE_NAME
	attrChainInfo = 6 // NFNLA_HOOK_CHAIN_INFO

	infoDesc = 1 // NFNLA_HOOK_INFO_DESC
	infoType = 2 // NFNLA_HOOK_INFO_TYPE, __be32

	typeNFTables  = 1 // NFNL_HOOK_TYPE_NFTABLES
	typeBPF       = 2 // NFNL_HOOK_TYPE_BPF, Linux 6.4
	typeFlowtable = 3 // NFNL_HOOK_TYPE_NFT_FLOWTABLE, Linux 6.13

	bpfID = 1 // NFNLA_HOOK_BPF_ID, __be32
)

// dumpAll lists the hooks of all families. A family or a hook that the kernel
// does not have has no functions.
func (r *Reader) dumpAll() (all []Hook, err error) {
	for family := range families {
		for point := range points {
			some, err := r.dump(family, uint8(point))
			switch {
			case errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EAFNOSUPPORT):
			case err != nil:
				return nil, fmt.Errorf("list Netfilter's hooks: %w", err)
			}
			all = append(all, some...)
		}
	}
	return all, nil
}

// dump lists the functions at one hook but for chains of nftables, which are
// rules.
func (r *Reader) dump(family, point uint8) (all []Hook, err error) {
	e := nlmsg.NewEncoder()
	e.ByteOrder = binary.BigEndian
	e.Uint32(attrHookNum, uint32(point))
	attrs, err := e.Encode()
	if err != nil {
		return nil, err
	}
	request := nlmsg.Request{
		Type: subsysHook<<8 | msgHookGet, Flags: unix.NLM_F_DUMP,
		Data: append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attrs...), // struct nfgenmsg
	}
	err = r.sock.Request(request, func(m nlmsg.Message) {
		if h, ok := parse(m.Data); ok {
			h.Family, h.Point = family, point
			all = append(all, h)
		}
	})
	return all, err
}

// parse reads one function of a dump; false if it is a chain of nftables or a
// flowtable, or makes no sense.
func parse(b []byte) (h Hook, ok bool) {
	if len(b) < nlmsg.SizeofNfgenmsg {
		return h, false
	}
	for typ, data := range nlmsg.Attributes(b[nlmsg.SizeofNfgenmsg:]) {
		switch typ {
		case attrPriority:
			if len(data) == 4 {
				h.Priority = int32(binary.BigEndian.Uint32(data))
			}
		case attrFunction:
			h.Function = text(data)
		case attrModule:
			h.Module = text(data)
		case attrChainInfo:
			kind, id := parseInfo(data)
			switch kind {
			case typeNFTables, typeFlowtable:
				return h, false
			case typeBPF:
				h.Program = id
			}
		}
	}
	return h, h.Function != "" || h.Program != 0
}

// parseInfo reads what kind of thing a function runs, and of BPF the program's
// number.
func parseInfo(b []byte) (kind, id uint32) {
	for typ, data := range nlmsg.Attributes(b) {
		switch {
		case typ == infoType && len(data) == 4:
			kind = binary.BigEndian.Uint32(data)
		case typ == infoDesc:
			for t, v := range nlmsg.Attributes(data) {
				if t == bpfID && len(v) == 4 {
					id = binary.BigEndian.Uint32(v)
				}
			}
		}
	}
	return kind, id
}

func text(b []byte) string { return unix.ByteSliceToString(b) }
