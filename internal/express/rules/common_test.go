package rules

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/scon-project/scon/test/bed/nstest"
)

// commonConns are what containers most often have.
var commonConns = map[string]Conn{
	"out": outbound(tcp, "443"), "published": published(tcp, "80"), "answered UDP": outbound(udp, "53"),
}

// TestCommonRulesets holds that the rulesets that containers most often live
// with leave their connections to the express path: none of them judges packets
// before it has accepted what is established.
func TestCommonRulesets(t *testing.T) {
	nftOnly := map[string]string{"nft": nft}
	for _, c := range []struct {
		file  string
		tools map[string]string
		set   string // of ipset, that it names
	}{
		{"calico.iptables", iptables, "cali40all-hosts-net"},
		{"crowdsec.nft", nftOnly, ""},
		{"docker.iptables", iptables, ""},
		{"docker.nft", nftOnly, ""},
		{"docker28.iptables", iptables, "docker-ext-bridges-v4"},
		{"fail2ban.iptables", iptables, "f2b-recidive"},
		{"fail2ban.nft", nftOnly, ""},
		{"firewalld.nft", nftOnly, ""},
		{"fw4.nft", nftOnly, ""},
		{"k3s.iptables", iptables, ""},
		{"kube-proxy.iptables", iptables, ""},
		{"kube-proxy.nft", nftOnly, ""},
		{"libvirt.iptables", iptables, ""},
		{"libvirt.nft", nftOnly, ""},
		{"netavark.iptables", iptables, ""},
		{"netavark.nft", nftOnly, ""},
		{"shorewall.iptables", iptables, ""},
		{"ufw-docker.iptables", iptables, ""},
		{"ufw.iptables", iptables, ""},
		{"workstation.nft", nftOnly, ""},
	} {
		for kind, tool := range c.tools {
			t.Run(c.file+" "+kind, func(t *testing.T) {
				ns := nstest.New(t)
				if c.set != "" {
					nstest.Run(t, ns, "ipset create "+c.set+" hash:net")
				}
				nstest.Run(t, ns, tool+" testdata/"+c.file)
				ruleset := readIn(t, ns, Options{})
				for name, conn := range commonConns {
					if rule, touched := ruleset.Touches(conn); touched {
						t.Errorf("%s is touched by %v: %s", name, rule, rule.Text)
					}
				}
			})
		}
	}
}

// TestCommonRulesetsChanged holds that a rule that judges packets is seen in
// the midst of such a ruleset.
func TestCommonRulesetsChanged(t *testing.T) {
	for _, c := range []struct {
		file   string
		tool   string
		before string // where in the file the rule is added
		rule   string
		why    string
	}{
		{"docker.iptables", xtNFT, "-A DOCKER-USER -j RETURN", "-A DOCKER-USER -p tcp --dport 443 -m hashlimit --hashlimit-above 100/sec --hashlimit-name h -j DROP", "hashlimit"},
		{"docker.nft", nft, "		counter accept comment \"OUTGOING\"", "		quota 10 mbytes accept", ""}, // behind established
		{"docker.nft", nft, "		ct state established,related counter accept\n		counter accept", "		quota 10 mbytes accept", "quota"},
		{"ufw.iptables", xtLegacy, "-A FORWARD -j ufw-before-forward", "-A FORWARD -m limit --limit 3/min -j LOG", "limit"},
		{"kube-proxy.iptables", xtLegacy, "-A KUBE-FORWARD -m conntrack --ctstate INVALID", "-A KUBE-FORWARD -m statistic --mode random --probability 0.1 -j DROP", "statistic"},
		{"kube-proxy.nft", nft, "		ct state new jump cluster-ips-check", "		numgen random mod 10 0 drop", "numgen random"},
		{"firewalld.nft", nft, "		return", "		meta length > 1000 meta mark set 1", "meta length"},
		{"fw4.nft", nft, "		ct state vmap { established : accept, related : accept } comment", "		limit rate over 1000/second drop", "limit"},
		{"crowdsec.nft", nft, "203.0.113.4 timeout", "		" + remote + " timeout 4h,", "log"},
		{"crowdsec.nft", nft, "203.0.113.4 timeout", "		" + host + " timeout 4h,", ""},
		{"workstation.nft", nft, "		ct state established,related", "		ip saddr @flood log", "log"},
	} {
		t.Run(c.file+" "+c.rule, func(t *testing.T) {
			text, err := os.ReadFile("testdata/" + c.file)
			if err != nil {
				t.Fatal(err)
			}
			changed := strings.Replace(string(text), c.before, c.rule+"\n"+c.before, 1)
			if changed == string(text) {
				t.Fatalf("no %q in %s", c.before, c.file)
			}
			touchCase{rules: changed, conn: outbound(tcp, "443"), why: c.why}.run(t, Options{}, c.tool)
		})
	}
}

// TestMarksAreNotFollowed holds that what stands behind a mark, which packets
// may bring along, is not taken for excluded, although the connection has it.
func TestMarksAreNotFollowed(t *testing.T) {
	ns := nstest.New(t)
	nstest.Run(t, ns, "ipset create mwan3_connected hash:net\n"+xtNFT+" testdata/mwan3.iptables")
	if rule, _ := readIn(t, ns, Options{}).Touches(outbound(tcp, "443")); rule.Why != "statistic" {
		t.Errorf("touched by %q, want the statistic match", rule.Why)
	}
}

// TestReadSeesEachGeneration reads rules while they change.
func TestReadSeesEachGeneration(t *testing.T) {
	ns := nstest.New(t)
	load(t, ns, nft, forwardChain("tcp dport 443 log"))
	nstest.Do(t, ns, func() {
		for _, want := range []string{"log", "limit", ""} {
			r, err := Read(Options{})
			if err != nil {
				t.Fatal(err)
			}
			if rule, _ := r.Touches(outbound(tcp, "443")); rule.Why != want {
				t.Errorf("by %q, want %q", rule.Why, want)
			}
			switch want {
			case "log":
				load(t, ns, nft, "flush ruleset\n"+forwardChain("tcp dport 443 limit rate 1/second accept"))
			case "limit":
				load(t, ns, nft, "flush ruleset\n")
			}
		}
	})
}

// manyRules are n rules that each accept one port, and one at the end that logs.
func manyRules(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "-A FORWARD -s 10.%d.%d.%d -p tcp --dport %d -j ACCEPT\n", i/62500, i/250%250, i%250, 1+i%65000)
	}
	return filterTable(b.String() + "-A FORWARD -j LOG")
}

func BenchmarkTouches(b *testing.B) {
	for kind, tool := range iptables {
		ns := nstest.New(b)
		file := b.TempDir() + "/rules"
		if err := os.WriteFile(file, []byte(manyRules(1000)), 0o600); err != nil {
			b.Fatal(err)
		}
		nstest.Run(b, ns, tool+" "+file)
		nstest.Do(b, ns, func() {
			r, err := Read(Options{})
			if err != nil {
				b.Fatal(err)
			}
			conn := outbound(tcp, "443")
			b.Run("touches "+kind, func(b *testing.B) {
				for b.Loop() {
					if _, touched := r.Touches(conn); !touched {
						b.Fatal("not touched")
					}
				}
			})
			b.Run("read "+kind, func(b *testing.B) {
				for b.Loop() {
					nstest.Do(b, ns, func() { Read(Options{}) })
				}
			})
		})
	}
}
