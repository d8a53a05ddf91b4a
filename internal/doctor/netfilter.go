package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/host/nlmsg"
)

// checkConntrack asks ctnetlink for its statistics.
func checkConntrack(h host) result {
	if err := askConntrack(); err != nil {
		return result{fail, err.Error(), "run a kernel with CONFIG_NF_CT_NETLINK; modprobe nf_conntrack_netlink"}
	}
	count, countErr := h.sysctl("net.netfilter.nf_conntrack_count")
	most, mostErr := h.sysctl("net.netfilter.nf_conntrack_max")
	if countErr != nil || mostErr != nil {
		return result{ok, "answers", ""}
	}
	return result{ok, fmt.Sprintf("%s of at most %s connections", count, most), ""}
}

func askConntrack() error {
	s, err := nlmsg.OpenRequests(unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open netfilter socket: %w", err)
	}
	defer s.Close()
	const getStatsCPU = unix.NFNL_SUBSYS_CTNETLINK<<8 | 4 // IPCTNL_MSG_CT_GET_STATS_CPU
	err = s.Request(nlmsg.Request{
		Type: getStatsCPU, Flags: unix.NLM_F_DUMP,
		Data: []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}, // struct nfgenmsg
	}, func(nlmsg.Message) {})
	if err != nil {
		return fmt.Errorf("ask ctnetlink for statistics: %w", err)
	}
	return nil
}

// checkAccounting reports whose counters miss the packets that go express.
func checkAccounting(h host) result {
	const name = "net.netfilter.nf_conntrack_acct"
	value, err := h.sysctl(name)
	switch {
	case err != nil:
		return result{note, "no " + name, ""}
	case value == "0":
		return result{ok, "off", ""}
	default:
		return result{note, "on: it counts regular packets only", "take counters from 'scon flows --json'"}
	}
}

func checkBridgeNetfilter(h host) result {
	const name = "net.bridge.bridge-nf-call-iptables"
	value, err := h.sysctl(name)
	if err != nil {
		return result{ok, "not loaded", ""}
	}
	return result{ok, name + " = " + value, ""}
}

// checkLegacy reads which tables iptables-legacy has made in the namespace.
func checkLegacy(h host) result {
	var tables []string
	for _, family := range []struct{ prefix, file string }{{"ip", "ip_tables_names"}, {"ip6", "ip6_tables_names"}} {
		names, err := h.read("/proc/thread-self/net/" + family.file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return result{note, err.Error(), ""}
		}
		for _, name := range strings.Fields(names) {
			tables = append(tables, family.prefix+" "+name)
		}
	}
	if len(tables) == 0 {
		return result{ok, "no tables", ""}
	}
	return result{
		note, strings.Join(tables, ", ") + ": a change is seen by xtables' lock file, or when the lease ends, within 1 s",
		"move the rules to iptables-nft (update-alternatives --config iptables)",
	}
}

// checkFlowtable makes a flowtable in a namespace of its own.
func checkFlowtable(host) result {
	err := netns.Scratch(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "scon"})
		c.AddFlowtable(&nftables.Flowtable{
			Table: table, Name: "scon",
			Hooknum:  nftables.FlowtableHookIngress,
			Priority: nftables.FlowtablePriorityFilter,
		})
		return c.Flush()
	})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
		return result{note, "this kernel has none", "run a kernel with CONFIG_NF_FLOW_TABLE and CONFIG_NFT_FLOW_OFFLOAD"}
	case err != nil:
		return result{note, "a flowtable cannot be made: " + err.Error(), ""}
	}
	return result{ok, "tried", ""}
}
