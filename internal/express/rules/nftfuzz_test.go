package rules

import (
	"bytes"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/test/bed/nstest"
)

// FuzzNFTRule holds that no rule that the kernel may send can make the reader
// fail.
func FuzzNFTRule(f *testing.F) {
	ns := nstest.New(f)
	nstest.Run(f, ns, `
		nft add table inet t
		nft add set inet t s { type ipv4_addr . inet_service ; flags interval ; }
		nft add chain inet t f { type filter hook forward priority 0 ; }
		nft add rule inet t f ip saddr . tcp dport @s limit rate 5/second
		nft add rule inet t f ct state vmap { established : accept, invalid : drop }
		nft add rule inet t f ct original ip saddr 10.0.0.1 ip dscp set cs1 meta mark set jhash ip saddr mod 4
		nft add rule inet t f iifname "eth*" tcp dport 80-90 meta length 100-200 ip ttl set 9
		iptables-nft -A FORWARD -p tcp -m multiport --dports 80,443 -m conntrack --ctstate ESTABLISHED -j TCPMSS --set-mss 100
	`)
	nstest.Do(f, ns, func() {
		sock, err := nlmsg.OpenRequests(unix.NETLINK_NETFILTER)
		if err != nil {
			f.Fatal(err)
		}
		defer sock.Close()
		err = sock.Request(nlmsg.Request{
			Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE, Flags: unix.NLM_F_DUMP,
			Data: []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
		}, func(m nlmsg.Message) { f.Add(bytes.Clone(m.Data[nlmsg.SizeofNfgenmsg:])) })
		if err != nil {
			f.Fatal(err)
		}
	})
	f.Fuzz(func(t *testing.T, b []byte) {
		key := tableKey{unix.NFPROTO_INET, "t"}
		c := &chain{table: key.String(), name: "f"}
		n := newNFTables(Options{Drops: true}, newExactCounters(Options{}))
		table := &table{
			nftables: n, key: key, kept: true, chains: map[string]*chain{"f": c},
			sets: map[string]*set{
				"s":      {key: 8, lengths: []int{4, 4}, flags: unix.NFT_SET_INTERVAL},
				"__map0": {key: 4, flags: unix.NFT_SET_MAP, elements: listOf([]element{{low: make([]byte, 4), data: make([]byte, 4)}})},
			},
		}
		for _, s := range table.sets {
			s.in = table
		}
		a := parseAttrs(slices.Clone(b))
		c.contents = &contents{in: table}
		stored := &rule{chain: c}
		table.follow(stored, expressionList(a.get(unix.NFTA_RULE_EXPRESSIONS)), "")
		r := &rule{chain: c}
		table.compile(r, table.words.unpack(stored.packed), "")
		c.rules = []*rule{r}
		bases := []*base{{chain: c, hook: forward}, {chain: c, hook: egress, devices: []string{"eth0"}}}
		ruleset := newRuleset(bases, Options{Drops: true})
		ruleset.Touches(outbound(tcp, "443"))
		ruleset.Discardable(maybeHere(sent(tcp, "443")))
	})
}

// TestHookDevices holds that devices are known by which a chain is registered,
// also where new kernels name many at once.
func TestHookDevices(t *testing.T) {
	e := nlmsg.NewEncoder()
	e.Bytes(1, []byte("eth0\x00"))
	e.Bytes(2, []byte("veth\x00"))
	devices, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	const hookDevs = 4
	patterns := hookDevices(attrs{{hookDevs, devices}})
	if want := []string{"eth0", "veth*"}; !slices.Equal(patterns, want) {
		t.Errorf("got %q, want %q", patterns, want)
	}
	for name, want := range map[string]bool{"eth0": true, "eth01": false, "veth7": true, "docker0": false} {
		if got := slices.ContainsFunc(patterns, (&Device{Name: name}).is); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
