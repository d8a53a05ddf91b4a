package rules

import (
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// OwnerEnded reports whether a table that belongs to a process (flag owner) is gone: the
// kernel removes it when the process closes its socket, and announces neither that nor a
// new generation (net/netfilter/nf_tables_api.c, nft_rcv_nl_event). It asks only where
// there is such a table, by a socket that stays open: closing one waits for transactions.
func (l *Live) OwnerEnded(sock *nlmsg.Requests) (bool, error) {
	owned := make(map[tableKey]uint64)
	if l.nft != nil {
		for key, t := range l.nft.tables {
			if t.owned {
				owned[key] = t.handle
			}
		}
	}
	if len(owned) == 0 {
		return false, nil
	}
	r := nftReader{sock: sock}
	err := r.request(unix.NFT_MSG_GETTABLE, unix.AF_UNSPEC, unix.NLM_F_DUMP, nil, func(m nlmsg.Message) {
		if len(m.Data) < nlmsg.SizeofNfgenmsg {
			return
		}
		a := parseAttrs(m.Data[nlmsg.SizeofNfgenmsg:])
		key := tableKey{m.Data[0], a.text(unix.NFTA_TABLE_NAME)}
		if handle, ok := owned[key]; ok && handle == tableHandle(a) {
			delete(owned, key)
		}
	})
	return len(owned) > 0, err
}
