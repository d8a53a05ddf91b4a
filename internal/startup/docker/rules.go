package docker

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/startup/nft"
)

// One nftables table holds the rules of all networks. It is rewritten in one transaction
// when a network or a published port is added or removed:
//
//	raw          drops packets to 127.0.0.0/8 from a bridge
//	prerouting   published ports, for packets from outside
//	output       published ports, for packets of this host
//	forward      drops packets into a network from outside, except to published ports
//	postrouting  masquerades containers' packets
//
// A connection to a published port from the host's 127.0.0.1, or from the network itself,
// gets the bridge's address as its source, so that replies return through the bridge. No
// process relays it, as docker-proxy does.
//
// Containers of a network without icc are kept apart by a table of the bridges' family: isolated
// ports of a bridge would drop what br_netfilter has it send on at once to a published port. The
// chain forward marks that, since rules of bridges cannot ask conntrack.
const tableName = "scon_docker"

// publishedMark is the mark of packets to published ports of their own network without icc.
const publishedMark = 0x73636f6e

// IPS_DST_NAT of conntrack.
const statusDNAT = 1 << 5

// chainNames are the tables' chains.
var chainNames = map[nftables.TableFamily][]string{
	nftables.TableFamilyINet:   {"raw", "prerouting", "output", "forward", "postrouting"},
	nftables.TableFamilyBridge: {"forward"},
}

// ruleset is a table under construction.
type ruleset struct {
	conn  *nftables.Conn
	table *nftables.Table
	count int // of rules
}

// writeRules writes the table of the networks, and returns the number of its rules;
// without networks it removes the table.
func writeRules(networks []*Network) (count int, err error) {
	conn, err := nftables.New()
	if err != nil {
		return 0, fmt.Errorf("write rules: %w", err)
	}
	r := &ruleset{conn: conn, table: &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}}
	conn.AddTable(r.table) // deleting a missing table fails
	conn.DelTable(r.table)
	if len(networks) > 0 {
		conn.AddTable(r.table)
		r.add(networks)
	}
	b := &ruleset{conn: conn, table: &nftables.Table{Name: tableName, Family: nftables.TableFamilyBridge}}
	if there, err := conn.ListTableOfFamily(tableName, b.table.Family); err == nil {
		conn.DelTable(there)
	}
	if slices.ContainsFunc(networks, (*Network).sifts) {
		conn.AddTable(b.table)
		b.sift()
	}
	if err := conn.Flush(); err != nil {
		return 0, fmt.Errorf("write rules: %w", err)
	}
	return r.count + b.count, nil
}

// sifts reports whether the network's containers are kept apart but for published ports.
func (n *Network) sifts() bool { return n.Apart && !n.Internal }

func (r *ruleset) sift() {
	accept := nftables.ChainPolicyAccept
	forward := r.conn.AddChain(&nftables.Chain{
		Name: "forward", Table: r.table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward,
		Priority: nftables.ChainPriorityRef(200), Policy: &accept, // behind br_netfilter's
	})
	for _, end := range []expr.MetaKey{expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME} {
		r.rule(forward, []expr.Any{
			&expr.Meta{Key: end, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(siftedPrefix)},
			&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(publishedMark)},
		}, nft.Drop)
	}
}

func (r *ruleset) add(networks []*Network) {
	accept := nftables.ChainPolicyAccept
	chain := func(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
		return r.conn.AddChain(&nftables.Chain{Name: name, Table: r.table, Type: kind, Hooknum: hook, Priority: priority, Policy: &accept})
	}
	raw := chain("raw", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	in := chain("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	out := chain("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest)
	forward := chain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
	post := chain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)

	for _, n := range networks {
		if n.Internal {
			r.rule(forward, enters(n), comesFromElsewhere(n), nft.Drop)
			r.rule(forward, comesFrom(n), leavesElsewhere(n), nft.Drop)
		} else if n.Apart {
			r.rule(forward, comesFrom(n), enters(n), published, []expr.Any{
				&expr.Immediate{Register: 1, Data: binaryutil.NativeEndian.PutUint32(publishedMark)},
				&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1},
			})
		}
	}
	r.rule(forward, nft.Established, nft.Accept)
	for _, n := range networks {
		if n.Apart { // by the bridge's own address, past the isolation of its ports
			r.rule(forward, comesFrom(n), enters(n), notPublished, nft.Drop)
		}
		if n.Internal {
			continue
		}
		r.rule(forward, enters(n), comesFromElsewhere(n), notPublished, nft.Drop)
		for _, p := range n.Pools {
			if p.Addr().Is4() {
				local := netip.MustParsePrefix("127.0.0.0/8")
				r.rule(raw, comesFrom(n), family(p), nft.Destination.In(local, expr.CmpOpEq), nft.Drop)
				r.rule(post, enters(n), family(p), nft.Source.In(local, expr.CmpOpEq), nft.Masquerade)
			}
			r.rule(post, enters(n), family(p), nft.Source.In(p, expr.CmpOpEq), published, nft.Masquerade)
			if n.Masquerade {
				r.rule(post, leavesElsewhere(n), family(p), nft.Source.In(p, expr.CmpOpEq), nft.Masquerade)
			}
		}
		for _, e := range n.Endpoints {
			for _, port := range e.Ports {
				if to, ok := e.addr(port.Host.Is6()); ok {
					exprs := port.redirect(to)
					r.rule(in, exprs)
					r.rule(out, exprs)
				}
			}
		}
	}
}

func (r *ruleset) rule(c *nftables.Chain, exprs ...[]expr.Any) {
	r.conn.AddRule(&nftables.Rule{Table: r.table, Chain: c, Exprs: slices.Concat(exprs...)})
	r.count++
}

var (
	published    = nft.Conntrack(expr.CtKeySTATUS, statusDNAT, expr.CmpOpNeq)
	notPublished = nft.Conntrack(expr.CtKeySTATUS, statusDNAT, expr.CmpOpEq)
)

func comesFrom(n *Network) []expr.Any          { return device(expr.MetaKeyIIFNAME, expr.CmpOpEq, n) }
func comesFromElsewhere(n *Network) []expr.Any { return device(expr.MetaKeyIIFNAME, expr.CmpOpNeq, n) }
func enters(n *Network) []expr.Any             { return device(expr.MetaKeyOIFNAME, expr.CmpOpEq, n) }
func leavesElsewhere(n *Network) []expr.Any    { return device(expr.MetaKeyOIFNAME, expr.CmpOpNeq, n) }

func device(key expr.MetaKey, op expr.CmpOp, n *Network) []expr.Any {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, n.Bridge)
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: name}}
}

// ofFamily returns a function that reports whether a subnet is of a family.
func (n *Network) ofFamily(v6 bool) func(netip.Prefix) bool {
	return func(p netip.Prefix) bool { return p.Addr().Is6() == v6 }
}

// family matches packets of a subnet's address family.
func family(p netip.Prefix) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocolFamily(p.Addr())}},
	}
}

func protocolFamily(a netip.Addr) byte {
	if a.Is6() {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// redirect forwards a published port to a container's address.
func (p Port) redirect(to netip.Addr) []expr.Any {
	exprs := family(netip.PrefixFrom(to, to.BitLen()))
	if p.Host.IsUnspecified() {
		exprs = append(exprs,
			&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)})
	} else {
		exprs = append(exprs, nft.Destination.In(netip.PrefixFrom(p.Host, p.Host.BitLen()), expr.CmpOpEq)...)
	}
	exprs = append(exprs, nft.Protocol(p.Proto)...)
	return append(exprs, nft.Port(),
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(p.Port)},
		&expr.Immediate{Register: 1, Data: to.AsSlice()},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(p.To)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(protocolFamily(to)), RegAddrMin: 1, RegProtoMin: 2, Specified: true},
	)
}
