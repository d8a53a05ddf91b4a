package devices

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/internal/host/sysctl"
	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/ipam"
	"github.com/scon-project/scon/internal/startup/nft"
)

// gateways are the host's addresses in a network, one of each range.
func gateways(c *cni.Conf) (all []netip.Prefix) {
	for _, set := range c.Sets {
		for _, r := range set {
			all = append(all, netip.PrefixFrom(r.Gateway, r.Subnet.Bits()))
		}
	}
	return all
}

// HostEnd are the settings of a device by which the host reaches containers. The host ignores
// router advertisements there: a container must not become its IPv6 router.
type HostEnd struct {
	IPv6 bool // has IPv6 addresses, also if new devices have them disabled
	// OwnSource lets no packet in from an address that is not behind the device.
	OwnSource bool
}

// hostEndOf returns those of a network. A tenant's container cannot send from a foreign
// address, since tenants are distinguished by address.
func hostEndOf(c *cni.Conf) HostEnd {
	return HostEnd{
		IPv6:      slices.ContainsFunc(c.Sets, func(s ipam.Set) bool { return s[0].Subnet.Addr().Is6() }),
		OwnSource: c.Tenant != "" && c.Routed(),
	}
}

func (e HostEnd) set(device string) error {
	err := ignoreRouters(device)
	if err == nil && e.OwnSource {
		err = sysctl.Set([]sysctl.Setting{{Name: "net/ipv4/conf/" + device + "/rp_filter", Value: "1"}})
	}
	if err != nil || !e.IPv6 {
		return err
	}
	return allowIPv6(device)
}

// ignoreRouters makes a device ignore router advertisements, which any container can send. A
// container keeps what it has heard of them, and so does a pooled namespace for its container.
func ignoreRouters(device string) error {
	return sysctl.Set([]sysctl.Setting{{Name: "net/ipv6/conf/" + device + "/accept_ra", Value: "0"}})
}

// allowIPv6 enables IPv6 addresses on a device, also if new devices have them disabled.
func allowIPv6(device string) error {
	return sysctl.Set([]sysctl.Setting{{Name: "net/ipv6/conf/" + device + "/disable_ipv6", Value: "0"}})
}

func setAlias(name string, index int, alias string) nlmsg.Command {
	e := nlmsg.NewEncoder()
	e.String(unix.IFLA_IFALIAS, alias)
	return nlmsg.Command{What: "set the alias of device " + name, Type: unix.RTM_NEWLINK, Data: append(ifinfo(index, 0, 0), encoded(e)...)}
}

// Forward enables forwarding on the host for the families of subnets.
func Forward(subnets []netip.Prefix) error {
	for _, p := range subnets {
		sysctl := "/proc/sys/net/ipv6/conf/all/forwarding"
		if p.Addr().Is4() {
			sysctl = "/proc/sys/net/ipv4/ip_forward"
		}
		if b, err := os.ReadFile(sysctl); err == nil && len(b) > 0 && b[0] == '1' {
			continue
		}
		if err := os.WriteFile(sysctl, []byte("1"), 0); err != nil {
			return fmt.Errorf("enable forwarding: %w", err)
		}
	}
	return nil
}

// natTable is the table with the masquerading rules of all networks.
const natTable = "scon_startup"

// masquerade makes packets that leave the network's subnets use the host's address:
// one rule for each subnet, not for each container. Existing rules stay untouched,
// since a change would notify programs that watch rules.
func masquerade(c *cni.Conf) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("masquerade: %w", err)
	}
	table, chain := natChain()
	var there []string
	if rules, err := conn.GetRules(table, chain); err == nil {
		for _, r := range rules {
			there = append(there, commentOf(r))
		}
	}
	changed := false
	for _, set := range c.Sets {
		for _, r := range set {
			comment := c.Name + " " + r.Subnet.String()
			if r.Subnet.Addr().Is6() || slices.Contains(there, comment) {
				continue
			}
			if !changed {
				conn.AddTable(table)
				conn.AddChain(chain)
				changed = true
			}
			conn.AddRule(&nftables.Rule{
				Table: table, Chain: chain,
				Exprs:    masqueraded(r.Subnet),
				UserData: userdata.AppendString(nil, userdata.TypeComment, comment),
			})
		}
	}
	if !changed {
		return nil
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("masquerade: %w", err)
	}
	return nil
}

// masqueraded is the rule of a subnet.
func masqueraded(p netip.Prefix) []expr.Any {
	return slices.Concat(nft.Source.In(p, expr.CmpOpEq), nft.Destination.In(p, expr.CmpOpNeq), nft.Masquerade)
}

// unmasquerade removes the rules of a network, and the table after the last rule.
func unmasquerade(c *cni.Conf) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("remove masquerading: %w", err)
	}
	table, chain := natChain()
	rules, err := conn.GetRules(table, chain)
	if err != nil {
		return nil // there is no table
	}
	left := len(rules)
	for _, r := range rules {
		if network, _, _ := strings.Cut(commentOf(r), " "); network == c.Name {
			if err := conn.DelRule(r); err != nil {
				return fmt.Errorf("remove masquerading: %w", err)
			}
			left--
		}
	}
	switch left {
	case len(rules):
		return nil // none is the network's
	case 0:
		conn.DelTable(table)
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("remove masquerading: %w", err)
	}
	return nil
}

func natChain() (*nftables.Table, *nftables.Chain) {
	table := &nftables.Table{Name: natTable, Family: nftables.TableFamilyIPv4}
	return table, &nftables.Chain{
		Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	}
}

func commentOf(r *nftables.Rule) string {
	word, _ := userdata.GetString(r.UserData, userdata.TypeComment)
	return word
}
