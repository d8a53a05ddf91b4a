package rules

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/nstest"
)

// TestCommonRulesets holds that the rulesets that containers most often live
// with leave their connections to the express way, until a rule is added that
// judges packets ahead of what accepts them.
func TestCommonRulesets(t *testing.T) {
	for _, c := range []struct {
		name   string
		file   string
		tools  map[string]string
		before string // where in the file the rule is added
		rule   string
		why    string
	}{
		{
			"Docker", "docker.iptables", iptables,
			"-A DOCKER-USER -j RETURN", "-A DOCKER-USER -p tcp --dport 443 -m hashlimit --hashlimit-above 100/sec --hashlimit-name h -j DROP", "hashlimit",
		},
		{
			"ufw", "ufw.iptables", iptables,
			"-A FORWARD -j ufw-before-forward", "-A FORWARD -m limit --limit 3/min -j LOG", "limit",
		},
		{
			"kube-proxy", "kube-proxy.iptables", iptables,
			"-A KUBE-FORWARD -m conntrack --ctstate INVALID", "-A KUBE-FORWARD -m statistic --mode random --probability 0.1 -j DROP", "statistic",
		},
		{
			"firewalld", "firewalld.nft", map[string]string{"nft": nft},
			"		return", "		meta length > 1000 meta mark set 1", "meta length",
		},
	} {
		text, err := os.ReadFile("testdata/" + c.file)
		if err != nil {
			t.Fatal(err)
		}
		changed := strings.Replace(string(text), c.before, c.rule+"\n"+c.before, 1)
		if changed == string(text) {
			t.Fatalf("no %q in %s", c.before, c.file)
		}
		for kind, tool := range c.tools {
			for name, conn := range map[string]Conn{
				"out": outbound(tcp, "443"), "published": published(tcp, "80"), "answered UDP": outbound(udp, "53"),
			} {
				t.Run(c.name+" "+kind+" "+name, func(t *testing.T) {
					touchCase{rules: string(text), conn: conn}.run(t, Options{}, tool)
				})
			}
			t.Run(c.name+" "+kind+" changed", func(t *testing.T) {
				touchCase{rules: changed, conn: outbound(tcp, "443"), why: c.why}.run(t, Options{}, tool)
			})
		}
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
		fmt.Fprintf(&b, "-A FORWARD -s 10.0.%d.%d -p tcp --dport %d -j ACCEPT\n", i/250, i%250, 1+i)
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
