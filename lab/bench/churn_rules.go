package bench

import (
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
)

// rulesPerService is the number of rules of a service with two endpoints, as kube-proxy
// writes them.
const rulesPerService = 8

// churnTable has the rules of Churn, beside Docker's.
const churnTable = "sconchurn"

// watchChains count the regular packets to a port, and have a chain for the rule that
// concerns them.
const watchChains = `table ip sconchurn {
	chain concerned {
	}
	chain watch {
		type filter hook forward priority filter; policy accept;
		udp dport %d counter
		jump concerned
	}
}
`

// serviceRules returns an nft script with a number of rules, rounded up to whole services,
// that only new connections meet: chains of type nat as kube-proxy's. Chain "changing"
// belongs to a service and is empty.
func serviceRules(rules int) string {
	var chains, services strings.Builder
	n := (rules + rulesPerService - 1) / rulesPerService
	for i := range n {
		address := fmt.Sprintf("10.%d.%d.%d", 96+i>>16, i>>8&0xff, i&0xff)
		for j, end := range []string{"a", "b"} {
			endpoint := fmt.Sprintf("10.%d.%d.%d", 160+4*j+i>>16, i>>8&0xff, i&0xff)
			fmt.Fprintf(&chains, "chain sep-%d%s {\nip saddr %s counter meta mark set mark or 0x4000\nmeta l4proto tcp counter dnat to %[3]s:8080\n}\n", i, end, endpoint)
		}
		fmt.Fprintf(&chains, "chain svc-%d {\nip saddr != 10.244.0.0/16 ip daddr %s tcp dport 80 counter meta mark set mark or 0x4000\n"+
			"numgen random mod 2 0 counter jump sep-%[1]da\ncounter jump sep-%[1]db\n}\n", i, address)
		fmt.Fprintf(&services, "ip daddr %s tcp dport 80 counter jump svc-%d\n", address, i)
	}
	return fmt.Sprintf("table ip %s {\nchain changing {\n}\n%schain services {\n%sjump changing\n}\n"+
		"chain prerouting {\ntype nat hook prerouting priority dstnat; policy accept;\njump services\n}\n"+
		"chain postrouting {\ntype nat hook postrouting priority srcnat; policy accept;\nmeta mark and 0x4000 == 0x4000 counter masquerade\n}\n}\n",
		churnTable, &chains, &services)
}

// changer changes the rules of serviceRules in a namespace.
type changer struct {
	netns string
	conn  *nftables.Conn
	table *nftables.Table
}

func openChanger(in string) (c *changer, err error) {
	c = &changer{netns: in, table: &nftables.Table{Name: churnTable, Family: nftables.TableFamilyIPv4}}
	err = netns.Do(in, func() (err error) {
		c.conn, err = nftables.New(nftables.AsLasting())
		return err
	})
	return c, err
}

func (c *changer) close() error { return c.conn.CloseLasting() }

// add adds a rule to a chain: one change.
func (c *changer) add(chain string, exprs []expr.Any) error {
	c.conn.AddRule(&nftables.Rule{Table: c.table, Chain: c.chain(chain), Exprs: exprs})
	return c.flush("add a rule")
}

// empty removes the rules of a chain: one change.
func (c *changer) empty(chain string) error {
	c.conn.FlushChain(c.chain(chain))
	return c.flush("remove a rule")
}

func (c *changer) flush(what string) error {
	if err := c.conn.Flush(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func (c *changer) chain(name string) *nftables.Chain {
	return &nftables.Chain{Name: name, Table: c.table}
}

// watched returns the packets that the counter of watchChains has counted.
func (c *changer) watched() (uint64, error) {
	rules, err := c.conn.GetRules(c.table, c.chain("watch"))
	if err != nil {
		return 0, fmt.Errorf("read the counter: %w", err)
	}
	for _, r := range rules {
		for _, e := range r.Exprs {
			if counter, ok := e.(*expr.Counter); ok {
				return counter.Packets, nil
			}
		}
	}
	return 0, fmt.Errorf("read the counter: there is none in %d rules", len(rules))
}

// toPort matches packets of a protocol to a port.
func toPort(proto byte, port uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
	}
}

// endpointRule is a rule of a service that no connection of the bench is about.
func endpointRule() []expr.Any {
	return append(toPort(unix.IPPROTO_TCP, 80), &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictReturn})
}

// limitRule judges single packets to a port, and accepts them all.
func limitRule(port uint16) []expr.Any {
	return append(toPort(unix.IPPROTO_UDP, port),
		&expr.Limit{Type: expr.LimitTypePkts, Rate: 1 << 30, Unit: expr.LimitTimeSecond},
		&expr.Verdict{Kind: expr.VerdictAccept})
}
