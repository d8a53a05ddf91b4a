package doctor

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/test/bed/check"
	"github.com/scon-project/scon/test/bed/nstest"
)

func TestFindRules(t *testing.T) {
	const rules = `
		nft add table inet mine
		nft add chain inet mine forward { type filter hook forward priority 0 ; }
		nft add chain inet mine input { type filter hook input priority 0 ; }
		nft add rule inet mine forward ct state new limit rate 10/second accept
		nft add rule inet mine forward limit rate 10/second accept
		nft add rule inet mine input limit rate 10/second accept
		nft add rule inet mine forward log
		iptables-nft -A FORWARD -m conntrack --ctstate NEW -m limit -j LOG
		iptables-nft -A FORWARD -m statistic --mode nth --every 2 --packet 0 -j DROP
		iptables-nft -t mangle -A PREROUTING -j NFQUEUE
	`
	nstest.Run(t, nstest.New(t), rules) // a rule whose module has to be loaded takes another handle
	ns := nstest.New(t)
	nstest.Run(t, ns, rules)
	const remedy = "accept established connections in an earlier rule, if this one concerns new connections"
	finding := func(rule, says string) api.Finding {
		return api.Finding{
			Level: note, What: "rule " + rule + " judges single packets and keeps 0 connections regular",
			Why: "it says: " + says, Remedy: remedy, Rule: ruleOf(rule, says),
		}
	}
	want := []api.Finding{
		finding("inet mine forward handle 4 (limit)", "limit accept"),
		finding("inet mine forward handle 6 (log)", "log"),
		finding("ip filter FORWARD handle 3 (statistic)", "-m statistic drop"),
		finding("ip mangle PREROUTING handle 2 (NFQUEUE)", "-j NFQUEUE"),
	}
	nstest.Do(t, ns, func() {
		if diff := check.Diff(want, findRules(Options{})); diff != "" {
			t.Errorf("findings (-want +got):\n%s", diff)
		}
		s := checkNFTables(thisHost())
		if want := "inet mine, ip filter, ip mangle"; s.level != ok || s.found != want {
			t.Errorf("got %+v, want %q", s, want)
		}
	})
}

// A rule is blamed for the connections that conntrack knows and it may touch.
func TestFindRulesCountsConnections(t *testing.T) {
	ns := nstest.New(t)
	nstest.Run(t, ns, `
		nft add table ip mine
		nft add chain ip mine forward { type filter hook forward priority 0 ; }
		nft add rule ip mine forward udp dport 53 limit rate 10/second accept
		conntrack -I -p udp --src 10.0.0.1 --dst 10.0.0.2 --sport 1000 --dport 53 --timeout 60
		conntrack -I -p udp --src 10.0.0.1 --dst 10.0.0.2 --sport 1000 --dport 54 --timeout 60
	`)
	nstest.Do(t, ns, func() {
		const want = "rule ip mine forward handle 2 (limit) judges single packets and keeps 1 connection regular"
		if found := findRules(Options{}); len(found) != 1 || found[0].What != want {
			t.Errorf("got %+v, want %q", found, want)
		}
	})
}

// A counter that must be exact keeps connections regular, and one that is not
// there is named.
func TestFindRulesOfExactCounters(t *testing.T) {
	ns := nstest.New(t)
	nstest.Run(t, ns, "iptables-nft -A FORWARD -p udp -m comment --comment billing -j ACCEPT")
	nstest.Do(t, ns, func() {
		want := []api.Finding{
			{
				Level: warn, What: `exact_counters names "web", but no rule for forwarded packets has that counter`,
				Why:    "no rule uses a counter of that name, or has a counter and that comment",
				Remedy: "use the rule's comment or counter name from 'nft list ruleset' or 'iptables-save'",
			},
			{
				Level: note, What: "rule ip filter FORWARD handle 2 (exact counter billing) judges single packets and keeps 0 connections regular",
				Why: "it says: meta l4proto udp counter accept", Remedy: "remove its name from exact_counters, if it may miss express packets",
				Rule: &api.Rule{Table: "ip filter", Chain: "FORWARD", Handle: 2, Text: "meta l4proto udp counter accept"},
			},
		}
		found := findRules(Options{ExactCounters: []string{"billing", "web"}})
		for i := range found { // newer iptables and nft say the same in other words
			found[i].Why = strings.Replace(found[i].Why, "ip protocol udp", "meta l4proto udp", 1)
			if found[i].Rule != nil {
				found[i].Rule.Text = strings.Replace(found[i].Rule.Text, "ip protocol udp", "meta l4proto udp", 1)
			}
		}
		if diff := check.Diff(want, found); diff != "" {
			t.Errorf("findings (-want +got):\n%s", diff)
		}
	})
}

func TestFindDevices(t *testing.T) {
	ns, container := nstest.New(t), nstest.New(t)
	nothing := []api.Finding{
		{Level: note, What: "no container in this network namespace", Remedy: "start one, or name its namespace with --netns"},
		{Level: note, What: "no device by which traffic leaves this network namespace", Why: "no route goes out of one"},
	}
	check := func(want []api.Finding) {
		t.Helper()
		nstest.Do(t, ns, func() {
			if diff := check.Diff(want, findDevices()); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
	check(nothing)

	nstest.Run(t, ns, `
		ip link add br0 type bridge
		ip link set br0 up
		ip link add port0 type veth peer name eth0 netns `+container+`
		ip link set port0 master br0 up
		ip link add up0 type veth peer name far0
		ip link set up0 up
		ip link set far0 up
		ip address add 10.99.0.1/24 dev up0
		tc qdisc add dev up0 clsact
	`)
	check([]api.Finding{
		{Level: ok, What: "port port0 of br0 can be hooked"},
		{Level: ok, What: "uplink up0 can be hooked"},
	})

	nstest.Run(t, ns, "tc qdisc add dev br0 root tbf rate 100mbit burst 64k latency 400ms")
	check([]api.Finding{
		{
			Level: warn, What: "containers of bridge br0 stay regular", Why: "their packets must pass its qdisc tbf",
			Remedy: "shape or filter at the uplink or at the containers' ports",
		},
		{Level: ok, What: "port port0 of br0 can be hooked"},
		{Level: ok, What: "uplink up0 can be hooked"},
	})

	nstest.Run(t, ns, "tc qdisc del dev br0 root")
	steer := func(cpus string) { // ip mounts the namespace's sysfs
		t.Helper()
		out, err := exec.Command("ip", "netns", "exec", ns, "sh", "-c", "echo "+cpus+" > /sys/class/net/br0/queues/rx-0/rps_cpus").CombinedOutput()
		if err != nil {
			t.Fatalf("steer packets at br0: %v: %s", err, out)
		}
	}
	steer("1")
	check([]api.Finding{
		{
			Level: warn, What: "containers of bridge br0 stay regular",
			Why:    "it hands packets to other CPUs (rps_cpus), where they would be overtaken",
			Remedy: "steer them at the containers' ports",
		},
		{Level: ok, What: "port port0 of br0 can be hooked"},
		{Level: ok, What: "uplink up0 can be hooked"},
	})

	steer("0")
	nstest.Run(t, ns, `
		tc filter add dev up0 ingress protocol ip u32 match ip protocol 17 0xff classid 1:1
		ip link set far0 master br0
	`)
	got := []api.Finding{}
	nstest.Do(t, ns, func() { got = findDevices() })
	if len(got) != 3 || got[0].Level != ok || got[1].What != "uplink up0 stays regular" || got[1].Level != warn || got[1].Why == "" ||
		got[2].What != "far0 stays regular" || got[2].Level != note {
		t.Errorf("a foreign filter and a veth without a container: %+v", got)
	}
}

// A bridge that is an uplink is reported while bridge netfilter is on.
func TestFindTranslated(t *testing.T) {
	settings := map[string]int{"net.bridge.bridge-nf-call-iptables=0": 0, "net.bridge.bridge-nf-call-iptables=1": 1}
	if _, err := os.Stat("/proc/sys/net/bridge/bridge-nf-call-iptables"); err != nil { // it does not
		settings = map[string]int{"net.ipv4.ip_forward=1": 0}
	}
	ns := nstest.New(t)
	nstest.Run(t, ns, `
		ip link add lan0 type bridge
		ip link add i0 type ifb
		ip link set i0 master lan0 up
		ip link set lan0 up
		ip address add 10.99.0.1/24 dev lan0
	`)
	for setting, want := range settings {
		nstest.Run(t, ns, "sysctl -qw "+setting)
		nstest.Do(t, ns, func() {
			named := 0
			for _, f := range findDevices() {
				if strings.Contains(f.What, "packets that enter by bridge lan0") {
					named++
				}
			}
			if named != want {
				t.Errorf("%s: %d findings, want %d", setting, named, want)
			}
		})
	}
}

// ruleOf is the rule "FAMILY TABLE CHAIN handle N (WHY)".
func ruleOf(name, text string) *api.Rule {
	var r api.Rule
	var family, table string
	_, _ = fmt.Sscanf(name, "%s %s %s handle %d", &family, &table, &r.Chain, &r.Handle)
	r.Table, r.Text = family+" "+table, text
	return &r
}
