package startup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/startup/control"
	"github.com/scon-project/scon/test/bed/nstest"
)

// After a flush of all rules, the security group of a container, the isolation of its tenant
// and masquerading are restored, also for pooled namespaces.
func TestFlushedRuleset(t *testing.T) {
	b := newBed(t)
	conf := b.conf(`"tenant": "a", "ipMasq": true, "rules": [{"direction": "ingress", "protocol": "tcp", "port": 80}, {"direction": "egress"}]`)
	file := filepath.Join(b.dir, "net.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	b.start(reconcileEnv+"=100ms", configEnv+fmt.Sprintf("=  networks: [%s]\n  pool: {warm_target: 1, minimum: 0}", file))
	fill := func() {
		t.Helper()
		if err := control.Dial(b.socket()).FillStartupPool(control.StartupFill{Network: "net", Count: 1}); err != nil {
			t.Fatal(err)
		}
	}
	rules := func() string {
		t.Helper()
		lines := strings.Split(nstest.Run(t, b.host, "nft list ruleset"), "\n")
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	fill()
	nstest.Run(t, b.host, "nft flush ruleset")
	eventually(t, "the pooled namespace has rules", func() bool { return strings.Contains(rules(), "in-scp") })

	first, second := nstest.New(t), nstest.New(t)
	b.want(b.cni("ADD", "first", netns.Path(first), conf))
	b.want(b.cni("ADD", "second", netns.Path(second), conf, "CNI_IFNAME=net1"))
	fill()
	nstest.Run(t, b.host, "nft flush ruleset")
	eventually(t, "all rules are there again", func() bool {
		now := rules()
		for _, a := range b.state().Attachments {
			if !strings.Contains(now, "jump in-"+a.Host) || !strings.Contains(now, "jump out-"+a.Host) {
				return false
			}
		}
		return strings.Count(now, "masquerade") == 1 && strings.Contains(now, "jump of-a")
	})
	for id, pod := range map[string]string{"first": first, "second": second} {
		ifname := map[string]string{"first": "eth0", "second": "net1"}[id]
		b.want(b.cni("CHECK", id, netns.Path(pod), conf, "CNI_IFNAME="+ifname))
		b.want(b.cni("DEL", id, netns.Path(pod), conf, "CNI_IFNAME="+ifname))
	}
	b.stop()
	b.wantNothing()
	if left := nstest.Run(t, b.host, "nft list tables"); strings.Contains(left, "scon_startup") || strings.Contains(left, "scon_tenants") {
		t.Errorf("left: %s", left)
	}
}

// Rules know containers by addresses: no other container has one of theirs, at whatever bridge.
func TestRulesOfSameRange(t *testing.T) {
	b := newBed(t)
	b.start()
	plain := strings.Replace(b.conf(), `"isGateway": true`, `"isGateway": false`, 1)
	guarded := strings.Replace(plain, `"ipam"`, `"rules": [{"direction": "egress"}], "ipam"`, 1)
	addresses := make(map[string]bool)
	for i, conf := range []string{guarded, guarded, plain} {
		name := fmt.Sprint("net", i)
		conf = strings.NewReplacer(`"name": "net"`, fmt.Sprintf(`"name": %q`, name), "br0", "br"+name).Replace(conf)
		b.want(b.cni("ADD", name, netns.Path(nstest.New(t)), conf))
		addresses[b.address(name)] = true
	}
	if len(addresses) != 3 {
		t.Errorf("containers have addresses %v", addresses)
	}
}

// The security groups of pooled namespaces, which end with a killed agent, and of a container that
// was gone before its ADD ended, are removed by the next agent: their addresses are leased again.
// With the last one the table is removed.
func TestKilledWithRules(t *testing.T) {
	b := newBed(t)
	conf := b.conf(`"agentDown": "error"`, `"rules": [{"direction": "ingress", "protocol": "icmp"}, {"direction": "egress"}]`)
	file := filepath.Join(b.dir, "net.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	pooled := configEnv + fmt.Sprintf("=  networks: [%s]\n  pool: {warm_target: 2, minimum: 0}", file)
	for _, fault := range []string{"", "", "add-made"} {
		b.start(pooled, faultEnv+"="+fault)
		if err := control.Dial(b.socket()).FillStartupPool(control.StartupFill{Network: "net", Count: 2}); err != nil {
			t.Fatal(err)
		}
		if fault != "" {
			pod := nstest.New(t)
			b.cni("ADD", "c", netns.Path(pod), conf, "CNI_IFNAME=net1") // in place
			nstest.Run(t, pod, "ip link del net1")
		}
		b.kill()
		eventually(t, "the pool has ended", func() bool {
			return !slices.ContainsFunc(b.devices(), func(name string) bool { return strings.HasPrefix(name, pooledPrefix) })
		})
	}
	b.start()
	if left := nstest.Run(t, b.host, "nft list ruleset"); strings.Contains(left, "jump in-") {
		t.Errorf("left: %s", left)
	}
	for i := range 4 {
		pod := nstest.New(t)
		b.want(b.cni("ADD", fmt.Sprint(i), netns.Path(pod), conf))
		b.ping(pod)
		b.want(b.cni("DEL", fmt.Sprint(i), netns.Path(pod), conf))
	}
	b.stop()
	b.wantNothing()
	if left := nstest.Run(t, b.host, "nft list tables"); left != "" {
		t.Errorf("left: %s", left)
	}
}

// A part of the rules that another program removes or makes ineffective is restored.
func TestTamperedRuleset(t *testing.T) {
	b := newBed(t)
	conf := b.conf(`"tenant": "a", "ipMasq": true, "rules": [{"direction": "ingress", "protocol": "tcp", "port": 80}, {"direction": "egress"}]`)
	b.start()
	b.want(b.cni("ADD", "one", netns.Path(nstest.New(t)), conf))
	rules := func() string {
		t.Helper()
		words := strings.Fields(nstest.Run(t, b.host, "nft list ruleset"))
		slices.Sort(words)
		return strings.Join(words, " ")
	}
	want := rules()
	host := b.state().Attachments[0].Host
	for _, attack := range []string{
		"flush chain ip scon_groups forward",
		"insert rule ip scon_groups forward accept",
		"flush chain ip scon_groups in-" + host,
		"insert rule ip scon_groups out-" + host + " return",
		"flush map ip scon_groups ingress",
		"add table ip scon_groups { flags dormant; }",
		"delete table ip scon_groups",
		"flush chain ip scon_tenants forward",
		"flush chain ip scon_tenants of-a",
		"insert rule ip scon_tenants of-a accept",
		"flush map ip scon_tenants from",
		"flush set ip scon_tenants subnets",
		"add table ip scon_tenants { flags dormant; }",
		"delete table ip scon_tenants",
		"flush chain ip scon_startup postrouting",
		"add table ip scon_startup { flags dormant; }",
		"flush ruleset",
	} {
		nstest.Run(t, b.host, "nft "+attack)
		eventually(t, "the rules are whole after nft "+attack, func() bool { return rules() == want })
	}
	for _, r := range []struct{ chain, old, now string }{
		{"scon_groups forward", "established,related", "established,related,new"},
		{"scon_groups forward", "ip daddr", "ip saddr"},
		{"scon_groups forward", "ip saddr vmap", "ct state established ip saddr vmap"},
		{"scon_groups in-" + host, "80-80", "1-65535"},
		{"scon_groups in-" + host, "tcp dport 80-80", "ip ttl 1-255"},
		{"scon_groups out-" + host, "drop", "limit rate 1/second drop"},
		{"scon_groups out-" + host, "drop", "rt mtu 1 drop"}, // what google/nftables leaves out when it reads
		{"scon_tenants forward", "ip saddr", "ip daddr"},
		{"scon_tenants of-a", "return", "accept"},
		{"scon_tenants of-a", "@subnets", "!= @subnets"},
		{"scon_startup postrouting", "masquerade", "masquerade random"},
		{"scon_startup postrouting", "ip saddr", "ip daddr"},
	} {
		attack := replacement(t, b.host, r.chain, r.old, r.now)
		nstest.Run(t, b.host, "nft "+attack)
		eventually(t, "the rules are whole after nft "+attack, func() bool { return rules() == want })
	}
	b.want(b.cni("DEL", "one", netns.Path(nstest.New(t)), conf))
}

// replacement returns nft's command that replaces a part of a rule, and keeps its comment.
func replacement(t *testing.T, host, chain, old, now string) string {
	t.Helper()
	for line := range strings.Lines(nstest.Run(t, host, "nft -a list chain ip "+chain)) {
		rule, handle, found := strings.Cut(strings.TrimSpace(line), " # handle ")
		if found && strings.Contains(rule, old) && !strings.HasSuffix(rule, "{") {
			return fmt.Sprintf("replace rule ip %s handle %s %s", chain, handle, strings.Replace(rule, old, now, 1))
		}
	}
	t.Fatalf("%s has no rule with %q", chain, old)
	return ""
}
