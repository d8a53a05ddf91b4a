package devices

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/nft"
)

// One table holds the security groups of all containers. A map from the address to the
// container's chain keeps the cost of a packet independent of the number of
// containers:
//
//	forward ─ established ▶ accept
//	        ├ daddr in ingress ▶ in-HOST: rules accept, the rest is dropped
//	        └ saddr in egress  ▶ out-HOST
//
// The rules apply to packets that the host forwards, or bridges with br_netfilter.
const groupTable = "scon_groups"

// group is a netlink connection with the handles of the table.
type group struct {
	*nftables.Conn
	table           *nftables.Table
	forward         *nftables.Chain
	ingress, egress *nftables.Set
}

func openGroups() (*group, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	g := &group{Conn: conn, table: &nftables.Table{Name: groupTable, Family: nftables.TableFamilyIPv4}}
	g.forward = &nftables.Chain{
		Name: "forward", Table: g.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	}
	verdicts := func(name string) *nftables.Set {
		return &nftables.Set{Table: g.table, Name: name, IsMap: true, KeyType: nftables.TypeIPAddr, DataType: nftables.TypeVerdict}
	}
	g.ingress, g.egress = verdicts("ingress"), verdicts("egress")
	return g, nil
}

// ensureTable makes the table and the chain and maps common to all containers.
func (g *group) ensureTable() error {
	tables, err := g.ListTablesOfFamily(nftables.TableFamilyIPv4)
	if err != nil {
		return err
	}
	for _, t := range tables {
		if t.Name == groupTable {
			return nil
		}
	}
	g.AddTable(g.table)
	g.AddChain(g.forward)
	for _, m := range []*nftables.Set{g.ingress, g.egress} {
		if err := g.AddSet(m, nil); err != nil {
			return err
		}
	}
	for _, exprs := range g.forwardRules() {
		g.AddRule(&nftables.Rule{Table: g.table, Chain: g.forward, Exprs: exprs})
	}
	return nil
}

// forwardRules are the rules of the chain forward.
func (g *group) forwardRules() [][]expr.Any {
	lookup := func(field nft.Field, m *nftables.Set) []expr.Any {
		return []expr.Any{
			field.Load(true),
			&expr.Lookup{SourceRegister: 1, DestRegister: 0, IsDestRegSet: true, SetName: m.Name, SetID: m.ID},
		}
	}
	return [][]expr.Any{slices.Concat(nft.Established, nft.Accept), lookup(nft.Destination, g.ingress), lookup(nft.Source, g.egress)}
}

// addRules adds the container's security group, in one transaction.
func (h *Host) addRules(s Spec) error {
	if len(s.Conf.Rules) == 0 {
		return nil
	}
	h.groups.Lock()
	defer h.groups.Unlock()
	g, err := openGroups()
	if err == nil {
		err = g.ensureTable()
	}
	if err == nil {
		err = g.add(s)
	}
	if err == nil {
		err = g.Flush()
	}
	if err != nil {
		return fmt.Errorf("add the security group: %w", err)
	}
	return nil
}

// chainOf returns a container's chain for a direction.
func chainOf(direction, host string) string {
	if direction == "ingress" {
		return "in-" + host
	}
	return "out-" + host
}

func (g *group) add(s Spec) error {
	for direction, verdicts := range map[string]*nftables.Set{"ingress": g.ingress, "egress": g.egress} {
		rules := rulesTo(direction, s.Conf.Rules)
		if rules == nil {
			continue
		}
		chain := g.AddChain(&nftables.Chain{Name: chainOf(direction, s.Host), Table: g.table})
		for _, exprs := range rules {
			g.AddRule(&nftables.Rule{Table: g.table, Chain: chain, Exprs: exprs})
		}
		for _, l := range s.Leases {
			if !l.Address.Addr().Is4() {
				return fmt.Errorf("address %v: rules support IPv4 only", l.Address.Addr())
			}
			err := g.SetAddElements(verdicts, []nftables.SetElement{{
				Key:         l.Address.Addr().AsSlice(),
				VerdictData: &expr.Verdict{Kind: expr.VerdictJump, Chain: chain.Name},
			}})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// rulesTo are the rules of a container's chain for a direction. Without any, the direction is
// not filtered.
func rulesTo(direction string, rules []cni.Rule) (all [][]expr.Any) {
	other := nft.Source
	if direction == "egress" {
		other = nft.Destination
	}
	for _, r := range rules {
		if r.Direction == direction {
			all = append(all, append(match(r, other), nft.Return...))
		}
	}
	if all != nil {
		all = append(all, nft.Drop)
	}
	return all
}

// match matches a packet with a rule; other is the peer's address.
func match(r cni.Rule, other nft.Field) (exprs []expr.Any) {
	if p, err := netip.ParsePrefix(r.CIDR); err == nil && p.Bits() > 0 {
		exprs = append(exprs, other.In(p, expr.CmpOpEq)...)
	}
	if number := map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "icmp": unix.IPPROTO_ICMP}[r.Protocol]; number != 0 {
		exprs = append(exprs, nft.Protocol(number)...)
	}
	if r.Port == 0 {
		return exprs
	}
	return append(exprs, nft.Port(),
		&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: binaryutil.BigEndian.PutUint16(r.Port), ToData: binaryutil.BigEndian.PutUint16(max(r.Port, r.PortEnd))})
}

// dropRules removes the security group of a container; the names of its chains contain the
// device's.
func (h *Host) dropRules(n *cni.Network, host string) error {
	if len(n.Rules) == 0 {
		return nil
	}
	h.groups.Lock()
	defer h.groups.Unlock()
	g, err := openGroups()
	if err == nil {
		err = g.remove(g.ingress, chainOf("ingress", host))
	}
	if err == nil {
		err = g.remove(g.egress, chainOf("egress", host))
	}
	if err == nil {
		err = g.Flush()
	}
	if err != nil {
		return fmt.Errorf("remove the security group: %w", err)
	}
	return nil
}

// Groups returns the ends on the host of the containers that have a security group.
func (h *Host) Groups() (hosts []string, err error) {
	g, err := openGroups()
	if err != nil {
		return nil, err
	}
	chains, err := rulesOf(g.table)
	for chain := range chains {
		if _, host, ok := strings.Cut(chain, "-"); ok {
			hosts = append(hosts, host)
		}
	}
	return hosts, err
}

// removeTable removes the table, if it is there and no container has a security group.
func (h *Host) removeTable() error {
	hosts, err := h.Groups()
	if err != nil || len(hosts) > 0 {
		return err
	}
	g, err := openGroups()
	if err != nil {
		return err
	}
	g.AddTable(g.table) // deleting a missing table fails
	g.DelTable(g.table)
	return g.Flush()
}

// remove removes a container's chain, if it is there, with the elements that jump to it.
func (g *group) remove(verdicts *nftables.Set, name string) error {
	c := &nftables.Chain{Name: name, Table: g.table}
	rules, err := g.GetRules(g.table, c)
	if err != nil {
		return err
	}
	elements, err := elementsOf(g.Conn, verdicts)
	if err != nil {
		return err
	}
	elements = slices.DeleteFunc(elements, func(e nftables.SetElement) bool { return jumpOf(e) != name })
	if len(rules) == 0 && len(elements) == 0 {
		return nil
	}
	for _, e := range elements {
		if err := g.SetDeleteElements(verdicts, []nftables.SetElement{{Key: e.Key}}); err != nil {
			return err
		}
	}
	g.FlushChain(c)
	g.DelChain(c)
	return nil
}
