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

// checkNFTables names the tables of nftables: "ip nat, inet filter".
func checkNFTables(host) result {
	c, err := nftables.New()
	if err != nil {
		return result{warn, fmt.Sprintf("open netfilter socket: %v", err), ""}
	}
	tables, err := c.ListTables()
	if err != nil {
		return result{warn, fmt.Sprintf("list nftables tables: %v", err), "run a kernel with CONFIG_NF_TABLES"}
	}
	if len(tables) == 0 {
		return result{ok, "no rules", ""}
	}
	var names []string
	for _, t := range tables {
		names = append(names, tableName(t))
	}
	return result{ok, strings.Join(names, ", "), ""}
}

// findRules lists the rules that judge single packets, and how many of the
// connections in conntrack each keeps regular.
func findRules(o Options) []api.Finding {
	foreign, err := listForeign()
	var ruleset rules.Ruleset
	if err == nil {
		ruleset, err = rules.Read(rules.Options{ExactCounters: o.ExactCounters, Foreign: foreign})
	}
	if err != nil {
		return []api.Finding{{
			Level: fail, What: "every packet goes regular: the rules could not be read", Why: err.Error(),
			Remedy: "run as root; report an unknown format as a bug",
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
		found = append(found, api.Finding{Level: note, What: what, Why: "it says: " + r.Text, Remedy: r.Remedy(), Rule: r.Document()})
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

// findBlind reports the Netfilter hooks that this kernel does not list.
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

// findMissingCounters reports names in exact_counters that no counter has.
func findMissingCounters(ruleset rules.Ruleset) (found []api.Finding) {
	for _, name := range ruleset.MissingCounters() {
		found = append(found, api.Finding{
			Level: warn, What: fmt.Sprintf("exact_counters names %q, but no rule for forwarded packets has that counter", name),
			Why:    "no rule uses a counter of that name, or has a counter and that comment",
			Remedy: "use the rule's comment or counter name from 'nft list ruleset' or 'iptables-save'",
		})
	}
	return found
}

// ruleName identifies a rule.
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
	query := rules.Conn{}
	for _, b := range topology.Bridges {
		query.Inside = append(query.Inside, rules.Device{Name: b.Name, Index: b.Index})
	}
	for _, u := range topology.Uplinks {
		query.Outside = append(query.Outside, rules.Device{Name: u.Name, Index: u.Index})
	}
	kept := make(map[ruleName]int)
	err = c.Dump(func(conn conntrack.Conn) {
		query.Conn = conn
		query.Replies = conn.Orig.Dst != conn.Reply.Src // a published port
		if rule, touched := ruleset.Touches(query); touched {
			kept[name(rule)]++
		}
	})
	return kept, err
}

// tableName is the table's family, as nft names it, and its name.
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
