package devices

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/internal/startup/cni"
)

// A program that loads its own rules often removes all others first, as "nft flush
// ruleset" does, or changes a part of SCON's. The functions below restore SCON's rules. A
// table whose common part was changed is removed and made anew.

// KeepRules restores missing rules of networks.
func (h *Host) KeepRules(networks []*cni.Conf) error {
	h.groups.Lock()
	defer h.groups.Unlock()
	if err := errors.Join(removeBrokenTenants(networks), removeDormantNAT()); err != nil {
		return fmt.Errorf("check rules: %w", err)
	}
	var errs []error
	for _, c := range networks {
		errs = append(errs, addNetworkRules(c))
	}
	return errors.Join(errs...)
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

func removeDormantNAT() error {
	nft, err := nftables.New()
	if err != nil {
		return err
	}
	_, chain := natChain()
	there, rules, err := rulesInForce(nft, chain)
	if err != nil || !there || len(rules) > 0 {
		return err
	}
	nft.DelTable(chain.Table)
	return nft.Flush()
}

// removeBrokenTenants removes a table that does not isolate tenants as their networks need.
func removeBrokenTenants(networks []*cni.Conf) error {
	for _, v4 := range []bool{true, false} {
		t, err := openTenants(v4)
		if err != nil {
			return err
		}
		there, rules, err := rulesInForce(t.Conn, t.forward)
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		whole := len(rules) == 1
		if whole {
			if whole, err = t.isWhole(networks); err != nil {
				return err
			}
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

// isWhole reports whether the table isolates the networks that it has rules of.
func (t *tenants) isWhole(networks []*cni.Conf) (bool, error) {
	subnets, err := elementsOf(t.Conn, t.subnets)
	if err != nil {
		return false, err
	}
	from, err := elementsOf(t.Conn, t.from)
	if err != nil {
		return false, err
	}
	chains := make(map[string][]*nftables.Rule)
	for _, c := range networks {
		if c.Tenant == "" || !c.Routed() {
			continue
		}
		chain := tenantChain(c.Tenant)
		rules, read := chains[chain]
		if !read {
			if rules, err = t.GetRules(t.table, &nftables.Chain{Name: chain}); err != nil {
				return false, err
			}
			chains[chain] = rules
		}
		if !isTenantChain(rules) {
			return false, nil
		}
		for _, p := range c.Subnets() {
			comment := tenantComment(c, p)
			added := slices.ContainsFunc(rules, func(r *nftables.Rule) bool { return commentOf(r) == comment })
			jumps := hasElement(from, p.Addr(), chain)
			if added && (!jumps || !hasElement(subnets, p.Addr(), "")) || jumps && len(rules) == 0 {
				return false, nil
			}
		}
	}
	return true, nil
}

// isTenantChain reports whether a tenant's chain, if it has rules, has only its own.
func isTenantChain(rules []*nftables.Rule) bool {
	last := len(rules) - 1
	return last < 0 || endsIn(rules[last], expr.VerdictDrop) &&
		!slices.ContainsFunc(rules[:last], func(r *nftables.Rule) bool { return commentOf(r) == "" })
}

// hasElement reports whether a set has an address, in a verdict map with a jump to a chain.
func hasElement(elements []nftables.SetElement, a netip.Addr, chain string) bool {
	return slices.ContainsFunc(elements, func(e nftables.SetElement) bool {
		return !e.IntervalEnd && bytes.Equal(e.Key, a.AsSlice()) && (chain == "" || jumpOf(e) == chain)
	})
}

// jumpOf returns the chain that an element of a verdict map jumps to, "" if there is none.
// The library returns a verdict as the kernel's attributes.
func jumpOf(e nftables.SetElement) string {
	for typ, value := range nlmsg.Attributes(e.Val) {
		if typ == unix.NFTA_VERDICT_CHAIN {
			return unix.ByteSliceToString(value)
		}
	}
	return ""
}

// endsIn reports whether a rule ends in a verdict.
func endsIn(r *nftables.Rule, kind expr.VerdictKind) bool {
	if len(r.Exprs) == 0 {
		return false
	}
	v, ok := r.Exprs[len(r.Exprs)-1].(*expr.Verdict)
	return ok && v.Kind == kind
}

// rulesInForce reports whether a base chain's table is there, and returns the chain's rules,
// none if they have no effect: the table is dormant, or the chain is not where it was made.
// It asks for this table and this chain alone: a list of all has no end on hosts with many
// rules, and is incomplete if other programs change theirs meanwhile.
func rulesInForce(nft *nftables.Conn, base *nftables.Chain) (there bool, rules []*nftables.Rule, err error) {
	table, err := nft.ListTableOfFamily(base.Table.Name, base.Table.Family)
	if errors.Is(err, unix.ENOENT) {
		return false, nil, nil
	}
	if err != nil {
		return false, nil, err
	}
	rules, err = nft.GetRules(base.Table, base)
	if err != nil || table.Flags != 0 || len(rules) == 0 {
		return true, nil, err
	}
	chain, err := nft.ListChain(base.Table, base.Name)
	if err != nil {
		return true, nil, err
	}
	if chain.Type != base.Type || chain.Hooknum == nil || *chain.Hooknum != *base.Hooknum || chain.Priority == nil || *chain.Priority != *base.Priority {
		return true, nil, nil
	}
	return true, rules, nil
}

// elementsOf returns the elements of a set, none without the set.
func elementsOf(nft *nftables.Conn, s *nftables.Set) ([]nftables.SetElement, error) {
	elements, err := nft.GetSetElements(s)
	if err != nil && strings.Contains(err.Error(), unix.ENOENT.Error()) { // the library does not wrap it
		return nil, nil
	}
	return elements, err
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
	there, forward, err := rulesInForce(g.Conn, g.forward)
	if err != nil {
		return nil, false, err
	}
	if !there {
		return containers, true, nil
	}
	whole := len(forward) == forwardRules
	guarded := make(map[string]bool) // chains that the maps jump to, also of pooled namespaces
	jumps := make(map[jump]bool)
	for direction, m := range map[string]*nftables.Set{"ingress": g.ingress, "egress": g.egress} {
		elements, err := elementsOf(g.Conn, m)
		if err != nil {
			return nil, false, err
		}
		for _, e := range elements {
			a, _ := netip.AddrFromSlice(e.Key)
			chain := jumpOf(e)
			guarded[chain], jumps[jump{direction, a, chain}] = true, true
		}
	}
	rules, err := countRules(g.table)
	if err != nil {
		return nil, false, err
	}
	for chain := range guarded {
		whole = whole && rules[chain].drops
	}
	if !whole {
		g.DelTable(g.table)
		return containers, true, g.Flush()
	}
	for _, s := range containers {
		if !s.hasGroup(rules, jumps) {
			lost = append(lost, s)
		}
	}
	return lost, false, nil
}

// chainRules are the rules of a chain.
type chainRules struct {
	count int
	drops bool // the last one ends in a drop
}

// countRules returns the rules of a table by chain, in one request, since there may be
// thousands of chains. The kernel's list is of this table alone.
func countRules(table *nftables.Table) (map[string]chainRules, error) {
	s, err := nlmsg.OpenRequests(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	all := make(map[string]chainRules)
	r := nlmsg.Request{
		Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE, Flags: unix.NLM_F_DUMP,
		Data: slices.Concat([]byte{byte(table.Family), unix.NFNETLINK_V0, 0, 0}, nlmsg.Attr(unix.NFTA_RULE_TABLE, append([]byte(table.Name), 0))),
	}
	return all, s.Request(r, func(m nlmsg.Message) {
		var chain string
		var drops bool
		for typ, value := range nlmsg.Attributes(m.Data[min(4, len(m.Data)):]) {
			switch typ {
			case unix.NFTA_RULE_CHAIN:
				chain = unix.ByteSliceToString(value)
			case unix.NFTA_RULE_EXPRESSIONS:
				for _, e := range nlmsg.Attributes(value) {
					drops = isDrop(e)
				}
			}
		}
		all[chain] = chainRules{all[chain].count + 1, drops}
	})
}

// isDrop reports whether an expression, in the kernel's form, is the verdict drop.
func isDrop(e []byte) bool {
	for _, level := range []uint16{unix.NFTA_EXPR_DATA, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CODE} {
		var inner []byte
		for typ, value := range nlmsg.Attributes(e) {
			if typ == level {
				inner = value
			}
		}
		e = inner
	}
	return len(e) == 4 && expr.VerdictKind(binary.BigEndian.Uint32(e)) == expr.VerdictDrop
}

// jump is an element of the map of a direction.
type jump struct {
	direction string
	address   netip.Addr
	chain     string
}

// hasGroup reports whether a container's rules are there, given those of the table by
// chain, and the elements of its maps.
func (s Spec) hasGroup(there map[string]chainRules, jumps map[jump]bool) bool {
	for _, r := range s.Conf.Rules {
		chain, same := chainOf(r.Direction, s.Host), 0
		for _, other := range s.Conf.Rules {
			if other.Direction == r.Direction {
				same++
			}
		}
		if there[chain].count != same+1 { // + 1: the final drop
			return false
		}
		for _, l := range s.Leases {
			if !jumps[jump{r.Direction, l.Address.Addr(), chain}] {
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
