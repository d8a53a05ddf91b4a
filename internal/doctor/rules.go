package doctor

import (
	"fmt"
	"strings"

	"github.com/google/nftables"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/express/nfhooks"
	"github.com/scon-project/scon/internal/express/rules"
)

// lookNFTables names the tables of nftables: "ip nat, inet filter".
func lookNFTables(host) sight {
	c, err := nftables.New()
	if err != nil {
		return sight{warn, fmt.Sprintf("open netfilter socket: %v", err), ""}
	}
	tables, err := c.ListTables()
	if err != nil {
		return sight{warn, fmt.Sprintf("list nftables tables: %v", err), "run a kernel with CONFIG_NF_TABLES"}
	}
	if len(tables) == 0 {
		return sight{ok, "no rules", ""}
	}
	var names []string
	for _, t := range tables {
		names = append(names, tableName(t))
	}
	return sight{ok, strings.Join(names, ", "), ""}
}

// findRules names the rules that judge single packets, and how many of the
// connections that conntrack knows each keeps regular.
func findRules(o Options) []api.Finding {
	foreign, err := listForeign()
	var ruleset rules.Ruleset
	if err == nil {
		ruleset, err = rules.Read(rules.Options{ExactCounters: o.ExactCounters, Foreign: foreign})
	}
	if err != nil {
		return []api.Finding{{
			Level: fail, What: "every packet goes regular: the rules could not be read", Why: err.Error(),
			Remedy: "run as root; report a format that is not known",
		}}
	}
	found := findMissingCounters(ruleset)
	all := ruleset.PerPacket()
	if len(all) == 0 {
		return found
	}
	kept, err := countKept(ruleset)
	for _, r := range all {
		what := fmt.Sprintf("rule %v judges single packets", r)
		if r.Foreign() {
			what = r.Text + " may judge single packets"
		}
		if err == nil {
			what += fmt.Sprintf(" and keeps %s regular", connections(kept[name(r)]))
		}
		remedy := "put a rule that accepts established connections before it, if it is about new ones"
		if r.Foreign() {
			remedy = "remove it if it is not needed: it is no rule, so nothing is known of what it does"
		}
		if r.ByCounter() {
			remedy = "take its name from exact_counters, if it may miss express packets"
		}
		found = append(found, api.Finding{Level: note, What: what, Why: "it says: " + r.Text, Remedy: remedy})
	}
	return found
}

// listForeign lists functions at Netfilter's hooks that are no rules.
func listForeign() ([]nfhooks.Hook, error) {
	r, err := nfhooks.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return r.Foreign()
}

// findBlind says what of Netfilter's hooks this kernel does not list.
func findBlind() []api.Finding {
	r, err := nfhooks.Open()
	if err != nil {
		return nil // which findRules reports
	}
	defer r.Close()
	if r.Blind == nil {
		return nil
	}
	return []api.Finding{{
		Level: note, What: "functions of modules at Netfilter's hooks cannot be listed, but for IPVS and ebtables-legacy",
		Why:    r.Blind.Error(),
		Remedy: "load no module that judges single packets by itself, or run a kernel with CONFIG_NETFILTER_NETLINK_HOOK",
	}}
}

// findMissingCounters names what the settings say of counters that are not
// there.
func findMissingCounters(ruleset rules.Ruleset) (found []api.Finding) {
	for _, name := range ruleset.MissingCounters() {
		found = append(found, api.Finding{
			Level: warn, What: fmt.Sprintf("exact_counters names %q, which is no counter that forwarded packets meet", name),
			Why:    "no rule counts by a counter of that name, or has a counter and that comment",
			Remedy: "name the rule's comment or its counter as 'nft list ruleset' or 'iptables-save' show it",
		})
	}
	return found
}

// ruleName is what two readings of a rule have in common.
type ruleName struct {
	table, chain string
	handle       uint64
}

func name(r rules.Rule) ruleName { return ruleName{r.Table, r.Chain, r.Handle} }

func connections(n int) string {
	if n == 1 {
		return "1 connection"
	}
	return fmt.Sprintf("%d connections", n)
}

// countKept counts the TCP and UDP connections that each rule keeps
// regular, if they are a container's on any bridge by any uplink.
func countKept(ruleset rules.Ruleset) (map[ruleName]int, error) {
	topology, err := discover.Scan(discover.Options{})
	if err != nil {
		return nil, err
	}
	c, err := conntrack.Open()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	look := rules.Conn{}
	for _, b := range topology.Bridges {
		look.Inside = append(look.Inside, rules.Device{Name: b.Name, Index: b.Index})
	}
	for _, u := range topology.Uplinks {
		look.Outside = append(look.Outside, rules.Device{Name: u.Name, Index: u.Index})
	}
	kept := make(map[ruleName]int)
	err = c.Dump(func(conn conntrack.Conn) {
		look.Conn = conn
		look.Replies = conn.Orig.Dst != conn.Reply.Src // a published port
		if rule, touched := ruleset.Touches(look); touched {
			kept[name(rule)]++
		}
	})
	return kept, err
}

// tableName is the family, in nft's words, and the name.
func tableName(t *nftables.Table) string {
	family := fmt.Sprintf("family %d", t.Family)
	switch t.Family {
	case nftables.TableFamilyIPv4:
		family = "ip"
	case nftables.TableFamilyIPv6:
		family = "ip6"
	case nftables.TableFamilyINet:
		family = "inet"
	case nftables.TableFamilyARP:
		family = "arp"
	case nftables.TableFamilyBridge:
		family = "bridge"
	case nftables.TableFamilyNetdev:
		family = "netdev"
	}
	return family + " " + t.Name
}
