package cni

import (
	"fmt"
	"net/netip"
)

// Apart returns an error if two networks cannot coexist on a host: their tenants could
// reach each other or could not be distinguished. Networks of one tenant may share
// anything.
func Apart(a, b *Conf) error {
	if a.Tenant == b.Tenant {
		return nil
	}
	shared := func(key, value, want string) error {
		return fmt.Errorf("%s is %q, as in network %q of %s: want %s", key, value, b.Name, tenantWord(b), want)
	}
	switch {
	case a.Kind == Veth && b.Kind == Veth && a.Bridge == b.Bridge:
		return shared("bridge", a.Bridge, "one for each tenant")
	case a.Kind == OVS && b.Kind == OVS && a.Bridge == b.Bridge && (a.VLAN == b.VLAN || a.VLAN == 0 || b.VLAN == 0):
		return shared("bridge", a.Bridge, "another one, or a vlan for each tenant")
	case a.HasMaster() && b.HasMaster() && a.Master == b.Master && (a.Sharing != MultiTenant || b.Sharing != MultiTenant):
		return shared("master", a.Master, "one for each tenant, or sharing multi-tenant")
	}
	bothRouted := a.Routed() && b.Routed()
	oneTable := a.Kind == TCRouting && b.Kind == TCRouting && a.Master == b.Master
	if !bothRouted && !oneTable {
		return nil
	}
	for _, p := range a.Subnets() {
		for _, q := range b.Subnets() {
			if p.Overlaps(q) {
				return fmt.Errorf("subnet %v overlaps %v of network %q of %s: want distinct subnets for each tenant", p, q, b.Name, tenantWord(b))
			}
		}
	}
	return nil
}

// Neighbours reports whether two networks need distinct addresses: their containers are
// at one device, the host routes to both, or rules know those of one by their addresses.
func (n *Network) Neighbours(other *Network) bool {
	switch {
	case n.Kind == Veth && other.Kind == Veth && n.Bridge == other.Bridge,
		n.Kind == OVS && other.Kind == OVS && n.Bridge == other.Bridge && n.VLAN == other.VLAN,
		n.HasMaster() && other.HasMaster() && n.Master == other.Master:
		return true
	}
	return n.Routed() && other.Routed() || len(n.Rules)+len(other.Rules) > 0
}

func tenantWord(c *Conf) string {
	if c.Tenant == "" {
		return "no tenant"
	}
	return fmt.Sprintf("tenant %q", c.Tenant)
}

// Routed reports whether the host forwards for the network.
func (n *Network) Routed() bool {
	return n.IsGateway || n.Kind == PtP || n.Kind == Netkit
}

// Subnets returns the subnets of all ranges.
func (c *Conf) Subnets() (all []netip.Prefix) {
	for _, set := range c.Sets {
		for _, r := range set {
			all = append(all, r.Subnet)
		}
	}
	return all
}
