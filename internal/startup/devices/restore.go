package devices

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/nft"
)

// A program that loads its own rules often removes all others first, as "nft flush
// ruleset" does, or changes a part of SCON's. The functions below restore SCON's rules. A
// table whose common part was changed is removed and made anew.

// KeepRules restores missing rules of networks, and the host's addresses at their bridges: the
// kernel removes those of IPv6 with a bridge that goes down. Who ends forwarding, or IPv6 at a
// bridge, means it.
func (h *Host) KeepRules(networks []*cni.Conf) error {
	h.groups.Lock()
	defer h.groups.Unlock()
	if err := errors.Join(removeBrokenTenants(networks), removeBrokenNAT()); err != nil {
		return fmt.Errorf("check rules: %w", err)
	}
	var errs []error
	for _, c := range networks {
		errs = append(errs, addNetworkRules(c))
		if index, err := indexOf(c.Bridge); err == nil && c.IsGateway {
			all := gateways(c)
			if off, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + c.Bridge + "/disable_ipv6"); err == nil && off[0] == '1' {
				all = slices.DeleteFunc(all, func(p netip.Prefix) bool { return p.Addr().Is6() })
			}
			errs = append(errs, h.rt.Do(newGateways(index, all)...))
		}
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

// removeBrokenNAT removes a table that does not masquerade as the comments of its rules say.
func removeBrokenNAT() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	_, chain := natChain()
	there, rules, err := rulesInForce(conn, chain)
	if err != nil || !there {
		return err
	}
	whole := len(rules) > 0 && !slices.ContainsFunc(rules, func(r rule) bool {
		p, ok := subnetIn(r.comment)
		return !ok || !p.Addr().Is4() || !r.is(masqueraded(p))
	})
	if whole {
		return nil
	}
	conn.DelTable(chain.Table)
	return conn.Flush()
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
		whole := are(rules, [][]expr.Any{t.findTenant()})
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
	chains, err := rulesOf(t.table)
	if err != nil {
		return false, err
	}
	for _, c := range networks {
		if c.Tenant == "" || !c.Routed() {
			continue
		}
		chain := tenantChain(c.Tenant)
		rules := chains[chain]
		if !t.isTenantChain(rules) {
			return false, nil
		}
		for _, p := range c.Subnets() {
			comment := tenantComment(c, p)
			added := slices.ContainsFunc(rules, func(r rule) bool { return r.comment == comment })
			jumps := hasElement(from, p.Addr(), chain)
			if added && (!jumps || !hasElement(subnets, p.Addr(), "")) || jumps && len(rules) == 0 {
				return false, nil
			}
		}
	}
	return true, nil
}

// isTenantChain reports whether a tenant's chain, if it has rules, has only its own.
func (t *tenants) isTenantChain(rules []rule) bool {
	last := len(rules) - 1
	return last < 0 || rules[last].is(t.dropOthers()) && !slices.ContainsFunc(rules[:last], func(r rule) bool {
		p, ok := subnetIn(r.comment)
		return !ok || !r.is(t.keepOwn(p))
	})
}

// subnetIn returns the subnet that a rule's comment ends in.
func subnetIn(comment string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(comment[strings.LastIndexByte(comment, ' ')+1:])
	return p, err == nil
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

// rulesInForce reports whether a base chain's table is there, and returns the chain's rules,
// none if they have no effect: the table is dormant, or the chain is not where it was made.
// It asks for this table and this chain alone: a list of all has no end on hosts with many
// rules, and is incomplete if other programs change theirs meanwhile.
func rulesInForce(conn *nftables.Conn, base *nftables.Chain) (there bool, rules []rule, err error) {
	table, err := conn.ListTableOfFamily(base.Table.Name, base.Table.Family)
	if errors.Is(err, unix.ENOENT) {
		return false, nil, nil
	}
	if err != nil {
		return false, nil, err
	}
	all, err := rulesOf(base.Table)
	rules = all[base.Name]
	if err != nil || table.Flags != 0 || len(rules) == 0 {
		return true, nil, err
	}
	chain, err := conn.ListChain(base.Table, base.Name)
	if err != nil {
		return true, nil, err
	}
	if chain.Type != base.Type || chain.Hooknum == nil || *chain.Hooknum != *base.Hooknum || chain.Priority == nil || *chain.Priority != *base.Priority {
		return true, nil, nil
	}
	return true, rules, nil
}

// elementsOf returns the elements of a set, none without the set.
func elementsOf(conn *nftables.Conn, s *nftables.Set) ([]nftables.SetElement, error) {
	elements, err := conn.GetSetElements(s)
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
	whole := are(forward, g.forwardRules())
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
	rules, err := rulesOf(g.table)
	if err != nil {
		return nil, false, err
	}
	for chain := range guarded {
		last := len(rules[chain]) - 1
		whole = whole && last >= 0 && rules[chain][last].is(nft.Drop)
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

// jump is an element of the map of a direction.
type jump struct {
	direction string
	address   netip.Addr
	chain     string
}

// hasGroup reports whether a container's rules are there, given those of the table by
// chain, and the elements of its maps.
func (s Spec) hasGroup(there map[string][]rule, jumps map[jump]bool) bool {
	for _, direction := range []string{"ingress", "egress"} {
		chain, rules := chainOf(direction, s.Host), rulesTo(direction, s.Conf.Rules)
		if !are(there[chain], rules) {
			return false
		}
		for _, l := range s.Leases {
			if rules != nil && !jumps[jump{direction, l.Address.Addr(), chain}] {
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
