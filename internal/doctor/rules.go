package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/scon-project/scon/internal/api"
)

// chainRules are the rules of one chain of the namespace; iptables-nft's are
// among them.
type chainRules struct {
	chain *nftables.Chain
	rules []*nftables.Rule
}

// readRules lists every chain of nftables with its rules.
func readRules() ([]chainRules, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open netfilter socket: %w", err)
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", err)
	}
	var all []chainRules
	for _, chain := range chains {
		rules, err := c.GetRules(chain.Table, chain)
		if err != nil {
			return nil, fmt.Errorf("list nftables rules of %s: %w", chainName(chain), err)
		}
		all = append(all, chainRules{chain, rules})
	}
	return all, nil
}

// lookNFTables counts the rules of every table: "ip nat 12 rules".
func lookNFTables(host) sight {
	chains, err := readRules()
	if err != nil {
		return sight{warn, err.Error(), "run a kernel with CONFIG_NF_TABLES"}
	}
	if len(chains) == 0 {
		return sight{ok, "no rules", ""}
	}
	counts := map[string]int{}
	for _, c := range chains {
		counts[tableName(c.chain.Table)] += len(c.rules)
	}
	var lines []string
	for table, n := range counts {
		lines = append(lines, fmt.Sprintf("%s %d rules", table, n))
	}
	slices.Sort(lines)
	return sight{ok, strings.Join(lines, ", "), ""}
}

// findRules names the rules that judge every packet for itself. A packet that
// goes express does not meet them.
func findRules() []api.Finding {
	chains, err := readRules()
	if err != nil {
		return nil // lookNFTables says it
	}
	var found []api.Finding
	for _, c := range chains {
		if isLocal(c.chain) {
			continue
		}
		for i, rule := range c.rules {
			if what := perPacket(rule); what != "" {
				found = append(found, api.Finding{
					Level:  warn,
					What:   fmt.Sprintf("rule %d of %s judges every packet: %s", i+1, chainName(c.chain), what),
					Why:    "a packet that goes express does not meet it; one packet of each lease does",
					Remedy: "'scon pause --container C' for the containers that it is about",
				})
			}
		}
	}
	return found
}

// isLocal says whether a chain sees the machine's own packets only.
func isLocal(c *nftables.Chain) bool {
	return c.Hooknum != nil && c.Table.Family != nftables.TableFamilyNetdev &&
		(*c.Hooknum == *nftables.ChainHookInput || *c.Hooknum == *nftables.ChainHookOutput)
}

// perPacketMatches and perPacketTargets are iptables' extensions whose answer
// may differ from one packet of a connection to the next.
var (
	perPacketMatches = []string{"limit", "hashlimit", "quota", "connbytes", "connlimit", "statistic", "string", "u32", "time", "recent", "length", "bpf"}
	perPacketTargets = []string{"LOG", "NFLOG", "NFQUEUE", "TRACE", "TEE", "SET"}
)

// perPacket is what makes a rule judge every packet, "" when nothing does.
func perPacket(r *nftables.Rule) string {
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Limit:
			return "limit"
		case *expr.Quota:
			return "quota"
		case *expr.Connlimit:
			return "ct count"
		case *expr.Numgen:
			return "numgen"
		case *expr.Dynset:
			return "set update"
		case *expr.Log:
			return "log"
		case *expr.Queue:
			return "queue"
		case *expr.Match:
			if slices.Contains(perPacketMatches, e.Name) {
				return "-m " + e.Name
			}
		case *expr.Target:
			if slices.Contains(perPacketTargets, e.Name) {
				return "-j " + e.Name
			}
		}
	}
	return ""
}

func chainName(c *nftables.Chain) string { return tableName(c.Table) + " " + c.Name }

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
