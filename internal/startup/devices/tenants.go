package devices

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"

	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/nft"
)

// The host drops packets that it would forward from a tenant's containers to those of
// another tenant. One map lookup by source address finds the tenant, so the cost of a
// packet is independent of the number of tenants:
//
//	forward ─ saddr in from ▶ of-TENANT: daddr of its own returns,
//	                                     daddr in subnets is dropped
//
// A tenant's own bridge, VLAN or master isolates the traffic that the host does not
// forward.
const tenantTable = "scon_tenants"

// tenants is a netlink connection with the handles of one address family's table.
type tenants struct {
	*nftables.Conn
	table         *nftables.Table
	forward       *nftables.Chain
	subnets, from *nftables.Set
	v4            bool
}

func openTenants(v4 bool) (*tenants, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	t := &tenants{Conn: conn, table: &nftables.Table{Name: tenantTable, Family: nftables.TableFamilyIPv4}, v4: v4}
	typ := nftables.TypeIPAddr
	if !v4 {
		t.table.Family, typ = nftables.TableFamilyIPv6, nftables.TypeIP6Addr
	}
	t.forward = &nftables.Chain{
		Name: "forward", Table: t.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	}
	t.subnets = &nftables.Set{Table: t.table, Name: "subnets", Interval: true, KeyType: typ}
	t.from = &nftables.Set{Table: t.table, Name: "from", Interval: true, IsMap: true, KeyType: typ, DataType: nftables.TypeVerdict}
	return t, nil
}

// isolate isolates the containers of the network's tenant from those of others.
func isolate(c *cni.Conf) error {
	if c.Tenant == "" || !c.Routed() {
		return nil
	}
	for _, v4 := range []bool{true, false} {
		if err := isolateFamily(c, v4); err != nil {
			return fmt.Errorf("isolate tenant %q: %w", c.Tenant, err)
		}
	}
	return nil
}

func isolateFamily(c *cni.Conf, v4 bool) error {
	var subnets []netip.Prefix
	for _, p := range c.Subnets() {
		if p.Addr().Is4() == v4 && !slices.Contains(subnets, p) {
			subnets = append(subnets, p)
		}
	}
	if len(subnets) == 0 {
		return nil
	}
	t, err := openTenants(v4)
	if err != nil {
		return err
	}
	there, err := t.ensureTable()
	if err != nil {
		return err
	}
	chain := &nftables.Chain{Name: tenantChain(c.Tenant), Table: t.table}
	var rules []*nftables.Rule
	if there {
		// Without the chain it has no rules.
		rules, _ = t.GetRules(t.table, chain)
	}
	changed := false
	if len(rules) == 0 {
		t.AddChain(chain)
		t.AddRule(&nftables.Rule{Table: t.table, Chain: chain, Exprs: t.dropOthers()})
	}
	for _, p := range subnets {
		comment := tenantComment(c, p)
		if slices.ContainsFunc(rules, func(r *nftables.Rule) bool { return commentOf(r) == comment }) {
			continue
		}
		t.InsertRule(&nftables.Rule{
			Table: t.table, Chain: chain,
			Exprs:    t.keepOwn(p),
			UserData: userdata.AppendString(nil, userdata.TypeComment, comment),
		})
		if !inSets(rules, p, comment) {
			if err := t.add(p, chain); err != nil {
				return err
			}
		}
		changed = true
	}
	if !changed {
		return nil
	}
	return t.Flush()
}

// unisolate removes what isolate made for a network, and the table after the last
// network.
func unisolate(c *cni.Conf) error {
	if c.Tenant == "" || !c.Routed() {
		return nil
	}
	for _, v4 := range []bool{true, false} {
		if err := unisolateFamily(c, v4); err != nil {
			return fmt.Errorf("remove the isolation of tenant %q: %w", c.Tenant, err)
		}
	}
	return nil
}

func unisolateFamily(c *cni.Conf, v4 bool) error {
	t, err := openTenants(v4)
	if err != nil {
		return err
	}
	chain := &nftables.Chain{Name: tenantChain(c.Tenant), Table: t.table}
	rules, err := t.GetRules(t.table, chain)
	if err != nil {
		return err
	}
	if len(rules) == 0 {
		return nil
	}
	from, err := elementsOf(t.Conn, t.from)
	if err != nil {
		return err
	}
	others := slices.ContainsFunc(from, func(e nftables.SetElement) bool { return !e.IntervalEnd && jumpOf(e) != chain.Name })
	left := len(rules) - 1 // without the final drop
	for _, p := range c.Subnets() {
		for _, r := range rules {
			if commentOf(r) != tenantComment(c, p) {
				continue
			}
			if !inSets(rules, p, commentOf(r)) {
				if err := t.remove(p, chain); err != nil {
					return err
				}
			}
			if err := t.DelRule(r); err != nil {
				return err
			}
			left--
		}
	}
	switch {
	case left == len(rules)-1:
		return nil // none is the network's
	case left == 0 && !others:
		t.DelTable(t.table)
	case left == 0:
		t.FlushChain(chain)
		t.DelChain(chain)
	}
	return t.Flush()
}

func tenantChain(tenant string) string { return "of-" + tenant }

// tenantComment returns the comment of the rule of a network's subnet.
func tenantComment(c *cni.Conf, p netip.Prefix) string { return c.Name + " " + p.String() }

// inSets reports whether another network of the tenant, whose rule has another
// comment, has a subnet.
func inSets(rules []*nftables.Rule, p netip.Prefix, besides string) bool {
	return slices.ContainsFunc(rules, func(r *nftables.Rule) bool {
		word := commentOf(r)
		return word != besides && strings.HasSuffix(word, " "+p.String())
	})
}

// ensureTable makes the table, chain and sets common to all tenants, if missing.
func (t *tenants) ensureTable() (there bool, err error) {
	tables, err := t.ListTablesOfFamily(t.table.Family)
	if err != nil {
		return false, err
	}
	if slices.ContainsFunc(tables, func(got *nftables.Table) bool { return got.Name == tenantTable }) {
		return true, nil
	}
	t.AddTable(t.table)
	t.AddChain(t.forward)
	for _, s := range []*nftables.Set{t.subnets, t.from} {
		if err := t.AddSet(s, nil); err != nil {
			return false, err
		}
	}
	t.AddRule(&nftables.Rule{Table: t.table, Chain: t.forward, Exprs: t.findTenant()})
	return false, nil
}

// findTenant is the rule of the chain forward.
func (t *tenants) findTenant() []expr.Any {
	return []expr.Any{
		nft.Source.Load(t.v4),
		&expr.Lookup{SourceRegister: 1, DestRegister: 0, IsDestRegSet: true, SetName: t.from.Name, SetID: t.from.ID},
	}
}

// keepOwn is the rule of one of the tenant's subnets, dropOthers the last rule of its chain.
func (t *tenants) keepOwn(p netip.Prefix) []expr.Any {
	return append(nft.Destination.In(p, expr.CmpOpEq), nft.Return...)
}

func (t *tenants) dropOthers() []expr.Any {
	return []expr.Any{
		nft.Destination.Load(t.v4),
		&expr.Lookup{SourceRegister: 1, SetName: t.subnets.Name, SetID: t.subnets.ID},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}
}

// add adds a subnet of the tenant with a chain to both sets; remove removes it.
func (t *tenants) add(p netip.Prefix, chain *nftables.Chain) error {
	plain, verdict := interval(p), interval(p)
	verdict[0].VerdictData = &expr.Verdict{Kind: expr.VerdictJump, Chain: chain.Name}
	if err := t.SetAddElements(t.subnets, plain); err != nil {
		return err
	}
	return t.SetAddElements(t.from, verdict)
}

func (t *tenants) remove(p netip.Prefix, chain *nftables.Chain) error {
	plain, verdict := interval(p), interval(p)
	verdict[0].VerdictData = &expr.Verdict{Kind: expr.VerdictJump, Chain: chain.Name}
	if err := t.SetDeleteElements(t.from, verdict); err != nil {
		return err
	}
	return t.SetDeleteElements(t.subnets, plain)
}

// interval returns a subnet in nftables' form: its first address and the one after it.
func interval(p netip.Prefix) []nftables.SetElement {
	elements := []nftables.SetElement{{Key: p.Addr().AsSlice()}}
	if next := lastOf(p).Next(); next.IsValid() {
		elements = append(elements, nftables.SetElement{Key: next.AsSlice(), IntervalEnd: true})
	}
	return elements
}
