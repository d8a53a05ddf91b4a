package cni

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/scon-project/scon/internal/startup/ipam"
)

// completeIPAM checks the sources of addresses and the routes.
func (c *Conf) completeIPAM() error {
	switch {
	case c.IPAM.Type == "":
		return fmt.Errorf("ipam.type is missing: want scon, or a plugin such as host-local")
	case c.IPAM.Type != OwnIPAM && c.Tenant != "" && c.Routed():
		return fmt.Errorf("ipam.type is %q: want scon for a network of a tenant, which is identified by its subnets", c.IPAM.Type)
	case c.IPAM.Type == "dhcp":
		return fmt.Errorf("ipam.type is dhcp, which needs an existing device: want scon, host-local or static")
	case c.IPAM.Type != OwnIPAM:
		return nil
	}
	groups := c.IPAM.Ranges
	if c.IPAM.Subnet != "" {
		groups = append([][]ipam.RangeConf{{c.IPAM.RangeConf}}, groups...)
	} else if c.IPAM.RangeConf != (ipam.RangeConf{}) {
		return fmt.Errorf("ipam.subnet is missing: rangeStart, rangeEnd and gateway need it")
	}
	if len(groups) == 0 {
		return fmt.Errorf("ipam.subnet is missing: want one such as 10.88.0.0/16, or ipam.ranges")
	}
	for i, group := range groups {
		var set ipam.Set
		for j, rc := range group {
			r, err := rc.Range()
			if err != nil {
				return fmt.Errorf("ipam range %d.%d: %w", i, j, err)
			}
			if c.Kind == TCRouting && !r.Subnet.Addr().Is4() {
				return fmt.Errorf("ipam range %d.%d: subnet is %q: kind %s routes IPv4 only", i, j, rc.Subnet, c.Kind)
			}
			if c.MTU != 0 && c.MTU < leastIPv6 && r.Subnet.Addr().Is6() {
				return fmt.Errorf("mtu is %d: want at least %d for the IPv6 range %v", c.MTU, leastIPv6, r.Subnet)
			}
			if len(c.Rules) > 0 && !r.Subnet.Addr().Is4() {
				return fmt.Errorf("ipam range %d.%d: subnet is %q: rules support IPv4 only, and would accept all IPv6 packets", i, j, rc.Subnet)
			}
			set = append(set, r)
		}
		if len(set) == 0 {
			return fmt.Errorf("ipam.ranges[%d] is empty: want at least one range", i)
		}
		c.Sets = append(c.Sets, set)
	}
	if err := checkSets(c.Sets); err != nil {
		return err
	}
	for i, r := range c.IPAM.Routes {
		dst, err := r.parse()
		if err != nil {
			return fmt.Errorf("ipam.routes[%d].%w", i, err)
		}
		if r.GW == "" && !slices.ContainsFunc(c.Sets, func(s ipam.Set) bool { return s[0].Subnet.Addr().Is4() == dst.Addr().Is4() }) {
			return fmt.Errorf("ipam.routes[%d].gw is missing: no range has a gateway of the address family of %v", i, dst)
		}
		c.Routes = append(c.Routes, dst)
	}
	return nil
}

// leastIPv6 is the minimum MTU of IPv6.
const leastIPv6 = 1280

// checkSets refuses overlapping ranges, and a set with ranges of both address families.
func checkSets(sets []ipam.Set) error {
	var all ipam.Set
	for _, set := range sets {
		for _, r := range set {
			if r.Subnet.Addr().Is4() != set[0].Subnet.Addr().Is4() {
				return fmt.Errorf("ipam ranges %v and %v are in one list: want one list for IPv4 and one for IPv6", set[0], r)
			}
			for _, other := range all {
				if !r.End.Less(other.Start) && !other.End.Less(r.Start) {
					return fmt.Errorf("ipam ranges %v and %v overlap: want each address once", other, r)
				}
			}
			all = append(all, r)
		}
	}
	return nil
}

func (r Route) parse() (netip.Prefix, error) {
	dst, err := netip.ParsePrefix(r.Dst)
	if err != nil {
		return dst, fmt.Errorf("dst is %q: want a subnet such as 0.0.0.0/0", r.Dst)
	}
	if dst != dst.Masked() {
		return dst, fmt.Errorf("dst is %q: host bits are set, did you mean %v?", r.Dst, dst.Masked())
	}
	if r.GW == "" {
		return dst, nil
	}
	gw, err := netip.ParseAddr(r.GW)
	if err != nil || gw.Zone() != "" {
		return dst, fmt.Errorf("gw is %q: want an address", r.GW)
	}
	if gw.Is4() != dst.Addr().Is4() {
		return dst, fmt.Errorf("gw is %v: want an address of the family of dst %v", gw, dst)
	}
	return dst, nil
}
