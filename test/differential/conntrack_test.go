package differential

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/lab"
)

// flushConntrack removes all connections from conntrack.
func (w *world) flushConntrack() error {
	return netns.Do(w.bed.Node(lab.Device), func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
}

// connections returns device's conntrack table without timeouts and counters, and whether it
// has ports that the kernel chose.
func (w *world) connections(k chance) (table []string, chosen bool, err error) {
	all := make(map[string]bool)
	err = w.ct.Dump(func(c conntrack.Conn) {
		if k.reset[c.Orig.Src.Port()] || k.reset[c.Orig.Dst.Port()] {
			c.TCPState = 0
		}
		if k.ends && c.TCPState > conntrack.TCPEstablished && c.TCPState < conntrack.TCPTimeWait {
			c.TCPState = conntrack.TCPTimeWait
		}
		for _, end := range []*netip.AddrPort{&c.Orig.Src, &c.Orig.Dst, &c.Reply.Src, &c.Reply.Dst} {
			if !k.ports[end.Port()] {
				chosen = true
				*end = netip.AddrPortFrom(end.Addr(), 0)
			}
		}
		all[fmt.Sprintf("%v reply %v mark %d TCP state %d", c.Orig, c.Reply, c.Mark, c.TCPState)] = true
	})
	return slices.Sorted(maps.Keys(all)), chosen, err
}

// patience is how long conntrack may not have been told of the end of a short connection.
const patience = 3 * time.Second

// compareConntrack compares the conntrack tables after a case.
func (p *pair) compareConntrack(k chance) (d *difference, err error) {
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		d, err = p.compareTables(k)
		if d == nil || err != nil || !k.ends || time.Now().After(end) {
			return d, err
		}
	}
}

func (p *pair) compareTables(k chance) (*difference, error) {
	plain, chosen, err := p.plain.connections(k)
	if err != nil {
		return nil, err
	}
	scon, also, err := p.scon.connections(k)
	if err != nil || slices.Equal(plain, scon) {
		return nil, err
	}
	if k.ports != nil && (chosen || also) { // perhaps one that the case also has, as in alike
		return p.compareTables(chance{reset: k.reset, ends: k.ends})
	}
	return &difference{of: "conntrack", what: fmt.Sprintf("conntrack's table\nwithout SCON: %q\nwith SCON: %q", plain, scon)}, nil
}

// state describes what decides about packets in both worlds and is not in a case.
func (p *pair) state(k chance) (string, error) {
	var all [2]string
	for i, w := range []*world{p.plain, p.scon} {
		table, _, err := w.connections(k)
		if err != nil {
			return "", err
		}
		rules, err := w.shell.output("sysctl net.bridge.bridge-nf-call-iptables net.bridge.bridge-nf-call-ip6tables; nft list ruleset; iptables-legacy-save; ip6tables-legacy-save")
		if err != nil {
			return "", err
		}
		all[i] = fmt.Sprintf("conntrack %q\n%s", table, rules)
	}
	if all[0] == all[1] {
		return "", nil
	}
	return fmt.Sprintf("without SCON: %s\nwith SCON: %s", all[0], all[1]), nil
}

// tracked reports whether conntrack has every connection with a Conentry,
// except those that SCON lists as untracked.
func (w *world) tracked() (bool, error) {
	flows, err := w.bed.Daemon.Flows("")
	if err != nil {
		return false, err
	}
	for _, f := range flows {
		_, err := w.ct.Get(conntrack.Tuple{
			Proto: map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP}[f.Proto],
			Src:   netip.AddrPortFrom(netip.MustParseAddr(f.Orig.Src), f.Orig.Sport),
			Dst:   netip.AddrPortFrom(netip.MustParseAddr(f.Orig.Dst), f.Orig.Dport),
		})
		unknown := errors.Is(err, conntrack.ErrNotFound)
		if err != nil && !unknown {
			return false, err
		}
		if unknown != f.Untracked {
			return false, nil
		}
	}
	return true, nil
}
