package express

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/conntrack"
)

// counting reports whether conntrack counts the packets of new connections,
// which it does not by default.
func counting() bool {
	setting, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_acct")
	return err == nil && strings.TrimSpace(string(setting)) == "1"
}

// countRegular adds conntrack's counters to flows, where it has some.
func countRegular(ct *conntrack.Client, flows []api.Flow) error {
	byTuple := make(map[conntrack.Tuple]*api.Flow, len(flows))
	all := make([]conntrack.Tuple, len(flows))
	for i := range flows {
		tuple, err := tracked(flows[i])
		if err != nil {
			return err
		}
		byTuple[tuple], all[i] = &flows[i], tuple
	}
	return ct.Counters(all, func(c conntrack.Counted) {
		f := byTuple[c.Orig]
		if f == nil {
			return
		}
		orig, reply := c.Counters[0], c.Counters[1]
		f.RegularPackets = &[2]uint64{orig.Packets, reply.Packets}
		f.RegularBytes = &[2]uint64{orig.Bytes, reply.Bytes}
	})
}

// tracked returns the original tuple of a flow, by which conntrack knows it.
func tracked(f api.Flow) (t conntrack.Tuple, err error) {
	src, err := netip.ParseAddr(f.Orig.Src)
	if err != nil {
		return t, fmt.Errorf("read the source of a flow: %w", err)
	}
	dst, err := netip.ParseAddr(f.Orig.Dst)
	if err != nil {
		return t, fmt.Errorf("read the destination of a flow: %w", err)
	}
	t = conntrack.Tuple{
		Proto: unix.IPPROTO_UDP,
		Src:   netip.AddrPortFrom(src, f.Orig.Sport), Dst: netip.AddrPortFrom(dst, f.Orig.Dport),
	}
	if f.Proto == "tcp" {
		t.Proto = unix.IPPROTO_TCP
	}
	return t, nil
}
