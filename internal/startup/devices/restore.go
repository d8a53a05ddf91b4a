package devices

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/scon-project/scon/internal/startup/cni"
)

// A program that loads its own rules often removes all others first, as "nft flush
// ruleset" does, or changes a part of SCON's. The functions below restore SCON's rules. A
// table whose common part was changed is removed and made anew.

// KeepRules restores missing rules of networks.
func (h *Host) KeepRules(networks []*cni.Conf) error {
	h.groups.Lock()
	defer h.groups.Unlock()
	for _, remove := range []func([]*cni.Conf) error{removeBrokenTenants, removeDormantNAT} {
		if err := remove(networks); err != nil {
			return fmt.Errorf("check rules: %w", err)
		}
	}
	for _, c := range networks {
		if err := addNetworkRules(c); err != nil {
			return err
		}
	}
	return nil
}

// addShared adds the rules that a network's containers share.
func (h *Host) addShared(c *cni.Conf) error {
	h.groups.Lock()
	defer h.groups.Unlock()
	return addNetworkRules(c)
}

// addNetworkRules adds those rules of a network that are missing.
func addNetworkRules(c *cni.Conf) error {
	if c.IPMasq {
		if err := masquerade(c); err != nil {
			return err
		}
	}
	return isolate(c)
}

func removeDormantNAT([]*cni.Conf) error {
	nft, err := nftables.New()
	if err != nil {
		return err
	}
	table, chain := natChain()
	there, whole, err := chainsOf(nft, table, chain)
	if err != nil || there == nil || whole {
		return err
	}
	nft.DelTable(table)
	return nft.Flush()
}

// removeBrokenTenants removes a table that does not isolate tenants as their networks need.
func removeBrokenTenants(networks []*cni.Conf) error {
	for _, v4 := range []bool{true, false} {
		t, err := openTenants(v4)
		if err != nil {
			return err
		}
		there, whole, err := chainsOf(t.Conn, t.table, t.forward)
		if err != nil {
			return err
		}
		if there == nil {
			continue
		}
		if whole {
			whole = t.isWhole(there, networks)
		}
		if whole {
			continue
		}
		t.DelTable(t.table)
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// isWhole reports whether a table, with these rules by chain, has the sets and rules of
// all networks. A set that cannot be read is missing.
func (t *tenants) isWhole(there map[string][]*nftables.Rule, networks []*cni.Conf) bool {
	if len(there[t.forward.Name]) != 1 {
		return false
	}
	for name, rules := range there {
		if name == t.forward.Name {
			continue
		}
		last := len(rules) - 1
		if last < 0 || !endsIn(rules[last], expr.VerdictDrop) || slices.ContainsFunc(rules[:last], func(r *nftables.Rule) bool { return commentOf(r) == "" }) {
			return false
		}
	}
	subnets, err := t.GetSetElements(t.subnets)
	if err != nil {
		return false
	}
	from, err := t.GetSetElements(t.from)
	if err != nil {
		return false
	}
	for _, c := range networks {
		if c.Tenant == "" || !c.Routed() {
			continue
		}
		for _, p := range c.Subnets() {
			chain, comment := tenantChain(c.Tenant), tenantComment(c, p)
			added := slices.ContainsFunc(there[chain], func(r *nftables.Rule) bool { return commentOf(r) == comment })
			if added && (!hasElement(subnets, p.Addr(), "") || !hasElement(from, p.Addr(), chain)) {
				return false
			}
		}
	}
	return true
}

// hasElement reports whether a set has an address, in a verdict map with a jump to a chain.
// The library returns verdicts as bytes that contain the chain's name.
func hasElement(elements []nftables.SetElement, a netip.Addr, chain string) bool {
	return slices.ContainsFunc(elements, func(e nftables.SetElement) bool {
		return !e.IntervalEnd && bytes.Equal(e.Key, a.AsSlice()) && (chain == "" || bytes.Contains(e.Val, append([]byte(chain), 0)))
	})
}

// endsIn reports whether a rule ends in a verdict.
func endsIn(r *nftables.Rule, kind expr.VerdictKind) bool {
	if len(r.Exprs) == 0 {
		return false
	}
	v, ok := r.Exprs[len(r.Exprs)-1].(*expr.Verdict)
	return ok && v.Kind == kind
}

// chainsOf returns the rules of a table by chain, nil without that table; whole is false
// if the table has no effect: it is dormant, or base is not where it was made.
func chainsOf(nft *nftables.Conn, table *nftables.Table, base *nftables.Chain) (rules map[string][]*nftables.Rule, whole bool, err error) {
	tables, err := nft.ListTablesOfFamily(table.Family)
	if err != nil {
		return nil, false, err
	}
	i := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == table.Name })
	if i < 0 {
		return nil, false, nil
	}
	chains, err := nft.ListChainsOfTableFamily(table.Family)
	if err != nil {
		return nil, false, err
	}
	rules = make(map[string][]*nftables.Rule)
	for _, c := range chains {
		if c.Table.Name != table.Name {
			continue
		}
		if rules[c.Name], err = nft.GetRules(table, c); err != nil {
			return nil, false, err
		}
		if c.Name == base.Name {
			whole = tables[i].Flags == 0 && c.Type == base.Type && c.Hooknum != nil && *c.Hooknum == *base.Hooknum &&
				c.Priority != nil && *c.Priority == *base.Priority
		}
	}
	return rules, whole, nil
}

// LostGroups returns the containers whose security group is not in force; all is true
// if none is.
func (h *Host) LostGroups(containers []Spec) (lost []Spec, all bool, err error) {
	h.groups.Lock()
	defer h.groups.Unlock()
	defer func() {
		if err != nil {
			err = fmt.Errorf("read the security groups: %w", err)
		}
	}()
	g, err := openGroups()
	if err != nil {
		return nil, false, err
	}
	there, whole, err := chainsOf(g.Conn, g.table, g.forward)
	if err != nil {
		return nil, false, err
	}
	if there == nil {
		return containers, true, nil
	}
	for name, rules := range there {
		if name == g.forward.Name {
			whole = whole && len(rules) == forwardRules
		} else { // a container's, or a pooled namespace's
			whole = whole && len(rules) > 0 && endsIn(rules[len(rules)-1], expr.VerdictDrop)
		}
	}
	if !whole {
		g.DelTable(g.table)
		return containers, true, g.Flush()
	}
	elements := make(map[string][]nftables.SetElement)
	for direction, m := range map[string]*nftables.Set{"ingress": g.ingress, "egress": g.egress} {
		if elements[direction], err = g.GetSetElements(m); err != nil {
			return nil, false, err
		}
	}
	for _, s := range containers {
		if !s.hasGroup(there, elements) {
			lost = append(lost, s)
		}
	}
	return lost, false, nil
}

// hasGroup reports whether a container's rules are there, given those of the table by
// chain, and the elements of its maps by direction.
func (s Spec) hasGroup(there map[string][]*nftables.Rule, elements map[string][]nftables.SetElement) bool {
	for _, r := range s.Conf.Rules {
		chain, same := chainOf(r.Direction, s.Host), 0
		for _, other := range s.Conf.Rules {
			if other.Direction == r.Direction {
				same++
			}
		}
		if len(there[chain]) != same+1 { // + 1: the final drop
			return false
		}
		for _, l := range s.Leases {
			if !hasElement(elements[r.Direction], l.Address.Addr(), chain) {
				return false
			}
		}
	}
	return true
}

// RestoreGroup restores the security group of a container.
func (h *Host) RestoreGroup(s Spec) error {
	if err := h.dropRules(&s.Conf.Network, s.Host); err != nil {
		return err
	}
	return h.addRules(s)
}
