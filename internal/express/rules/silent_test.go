package rules

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/nstest"
)

// Rules that depend on what changes without an announcement are found, for the
// connections that may reach them, whether the rules were read or are followed.
func TestSilent(t *testing.T) {
	inet := func(rule string) string {
		return `table inet t {
			set fixed { type ipv4_addr; elements = { 10.0.0.1 }; }
			set expiring { type ipv4_addr; timeout 1h; }
			set filled { type ipv4_addr; flags dynamic; size 100; }
			map verdicts { type ipv4_addr : verdict; timeout 1h; }
			map given { type ipv4_addr : mark; }
			chain f { type filter hook forward priority 0; ` + rule + `; }
		}`
	}
	for name, c := range map[string]struct {
		tool, rules string
		why         string // "" if there is none
	}{
		"addresses":              {nft, inet("ip saddr 10.0.0.1 drop"), ""},
		"a set":                  {nft, inet("ip saddr @fixed drop"), ""},
		"marks of packets":       {nft, inet("meta mark 7 drop"), ""},
		"state":                  {nft, inet("ct state established accept"), ""},
		"setting marks":          {nft, inet("ct mark set 7"), ""},
		"elements that expire":   {nft, inet("ip saddr @expiring drop"), "@expiring"},
		"elements of packets":    {nft, inet("ip saddr @filled drop"), "@filled"},
		"values of packets":      {nft, inet("meta mark set ip saddr map @given; ct state new add @given { ip saddr : 1 }"), "@given"},
		"a map":                  {nft, inet("ip saddr vmap @verdicts"), "@verdicts"},
		"marks":                  {nft, inet("ct mark 7 drop"), "ct mark"},
		"labels":                 {nft, inet("ct label 7 drop"), "ct label"},
		"a route":                {nft, inet("rt classid 7 drop"), ""},
		"the MTU of a route":     {nft, inet("rt mtu < 1000 drop"), "rt mtu"},
		"restoring marks":        {nft, inet("meta mark set ct mark"), "ct mark"},
		"marks and labels":       {nft, inet("ct mark 7 accept; ct label 7 drop"), "ct label"},
		"of others":              {nft, inet("ip saddr 10.0.0.1 ct mark 7 drop"), ""},
		"behind a verdict":       {nft, inet("accept; ct mark 7 drop"), ""},
		"iptables":               {xtNFT, filterTable("-A FORWARD -s 10.0.0.1 -j DROP\n"), ""},
		"iptables, marks":        {xtNFT, filterTable("-A FORWARD -m connmark --mark 7 -j DROP\n"), "-m connmark"},
		"iptables, of others":    {xtNFT, filterTable("-A FORWARD -s 10.0.0.1 -m connmark --mark 7 -j DROP\n"), ""},
		"iptables, CONNMARK":     {xtNFT, "*mangle\n-A PREROUTING -j CONNMARK --restore-mark\nCOMMIT\n", "-j CONNMARK"},
		"iptables-legacy, marks": {xtLegacy, filterTable("-A FORWARD -m connmark --mark 7 -j DROP\n"), "-m connmark"},
	} {
		t.Run(name, func(t *testing.T) {
			ns := nstest.New(t)
			load(t, ns, c.tool, c.rules)
			live := NewLive(Options{})
			nstest.Do(t, ns, func() {
				if _, err := live.Follow(nil, nil); err != nil {
					t.Fatal(err)
				}
			})
			for how, r := range map[string]Ruleset{"read": readIn(t, ns, Options{}), "followed": live.Ruleset} {
				rule, is := r.Silent(outbound(tcp, "443"))
				want := FullSilence
				switch {
				case c.why == "":
					want = NoSilence
				case strings.Contains(c.why, "mark") || strings.Contains(c.why, "MARK"):
					want = MarkSilence
				}
				if is != want || rule.Why != c.why {
					t.Errorf("%s: %v, %+v; want %v, %q", how, is, rule, want, c.why)
				}
				if _, touched := r.Touches(marked(outbound(tcp, "443"), 7)); touched {
					t.Errorf("%s: touched", how)
				}
				if r.HasLegacy() != (c.tool == xtLegacy) {
					t.Errorf("%s: tables of iptables-legacy: %v", how, r.HasLegacy())
				}
			}
		})
	}
}

// A rule of which packets fill a set that did not say so makes what looks into the set depend on
// them, in whichever order the rules come.
func TestSilentSetOfPackets(t *testing.T) {
	const looks, fills = "add rule inet t f ip saddr @s drop", "add rule inet t i udp dport 53 add @s { ip saddr }"
	for name, all := range map[string][]string{
		"looked into first": {looks, fills}, "filled first": {fills, looks}, "at once": {looks + " ; " + fills},
	} {
		t.Run(name, func(t *testing.T) {
			f := follow(t, nstest.New(t), Options{})
			load(t, f.ns, nft, "table inet t {\nset s { type ipv4_addr; }\nchain f { type filter hook forward priority 0; }\nchain i { type filter hook input priority 0; }\n}\n")
			for _, rule := range all {
				if f.follow(); f.IsSilent() {
					t.Fatal("something depends on packets already")
				}
				nstest.Run(t, f.ns, "nft "+rule)
			}
			f.follow()
			if rule, is := f.Silent(outbound(tcp, "443")); is != FullSilence || rule.Why != "@s" {
				t.Errorf("%v, %+v; want %v, @s", is, rule, FullSilence)
			}
		})
	}
}

// Marks by which SELinux judges packets are what its policy may change. A kernel where it is
// off takes no such rule.
func TestSecurityMarks(t *testing.T) {
	for _, target := range []string{"SECMARK", "CONNSECMARK"} {
		if s, _, _ := xtTarget(target, 0, nil); s.silent == nil || !s.silent() {
			t.Errorf("-j %s: nothing changes silently", target)
		}
	}
	b, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_OBJREF_IMM_TYPE, Data: []byte{0, 0, 0, 8}}, // NFT_OBJECT_SECMARK
		{Type: unix.NFTA_OBJREF_IMM_NAME, Data: []byte("web\x00")},
	})
	if err != nil {
		t.Fatal(err)
	}
	k := compiler{rule: &rule{code: new(code)}}
	k.objref(nftExpr{name: "objref", attrs: parseAttrs(b)})
	if all := k.rule.steps; len(all) != 1 || all[0].silent == nil || !all[0].silent() {
		t.Errorf("nothing changes silently: %+v", all)
	}
}

// A timeout policy that a rule may choose is noticed, also of a table with translation alone, and
// when it is gone: connections that have it keep it.
func TestTimeoutPolicies(t *testing.T) {
	f := follow(t, nstest.New(t), Options{})
	load(t, f.ns, nft, "table ip t {\nchain p { type nat hook prerouting priority -100; }\n}")
	if f.follow(); f.TimesOut() {
		t.Error("there is no policy yet")
	}
	load(t, f.ns, nft, "table ip t {\nct timeout brief { protocol tcp; policy = { established : 300, unack : 5 }; }\n}")
	if f.follow(); !f.TimesOut() {
		t.Error("one that comes is not noticed")
	}
	if all := follow(t, f.ns, Options{}); !all.TimesOut() {
		t.Error("one that is there is not noticed")
	}
	nstest.Run(t, f.ns, "nft flush ruleset")
	f.Lost("test")
	if f.follow(); !f.TimesOut() {
		t.Error("a rule is forgotten")
	}
	info := make([]byte, 72) // struct xt_ct_target_info_v1
	if timesOut(info) {
		t.Error("-j CT: timeouts")
	}
	if copy(info[28:], "brief"); !timesOut(info) {
		t.Error("-j CT --timeout brief: none")
	}
}

// A rule by which conntrack does not announce ends is noticed, also in a table with translation
// alone, which is not kept.
func TestHiddenEnds(t *testing.T) {
	for _, kind := range []string{"nat", "filter"} {
		chain := fmt.Sprintf("table ip t {\nchain p { type %s hook prerouting priority -100; }\n}\n", kind)
		f := follow(t, nstest.New(t), Options{Ends: true})
		load(t, f.ns, nft, chain)
		if f.follow(); f.HidesEnds() {
			t.Errorf("%s: there is no rule yet", kind)
		}
		load(t, f.ns, nft, "add rule ip t p ct event set new")
		if f.follow(); !f.HidesEnds() {
			t.Errorf("%s: one that comes is not noticed", kind)
		}
		if all := follow(t, f.ns, Options{Ends: true}); !all.HidesEnds() {
			t.Errorf("%s: one that is there is not noticed", kind)
		}
	}
}

// An element that is added again may have expired meanwhile: it concerns connections like a new
// one, also in a table that replaces one which had it.
func TestElementAddedAgain(t *testing.T) {
	const element, table = "add element inet t s { 172.17.0.2 timeout 1ms }", `table inet t {
		set s { type ipv4_addr; flags timeout; }
		chain f { type filter hook forward priority 0; ip saddr @s drop; }
	}
	`
	for name, again := range map[string]string{"in its set": element, "in a new table": "flush ruleset\n" + table + element} {
		t.Run(name, func(t *testing.T) {
			f := follow(t, nstest.New(t), Options{})
			load(t, f.ns, nft, table)
			f.follow()
			for _, commands := range []string{element, again} {
				load(t, f.ns, nft, commands)
				time.Sleep(10 * time.Millisecond) // else the kernel still has it, and adds nothing
				if !f.follow().Concerns(outbound(tcp, "443")) {
					t.Errorf("%s: nothing is concerned", commands)
				}
			}
		})
	}
}
