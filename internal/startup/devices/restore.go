package devices

import (
	"fmt"
	"slices"

	"github.com/google/nftables"

	"github.com/scon-project/scon/internal/startup/cni"
)

// A program that loads its own rules often removes all others first, as "nft flush
// ruleset" does. The functions below restore SCON's rules.

// KeepRules restores missing rules of a network.
func (h *Host) KeepRules(c *cni.Conf) error {
	h.groups.Lock()
	defer h.groups.Unlock()
	if c.IPMasq {
		if err := masquerade(c); err != nil {
			return err
		}
	}
	return isolate(c)
}

// LostGroups returns the containers whose security group is not in force; all is true
// if none is.
func (h *Host) LostGroups(containers []Spec) (lost []Spec, all bool, err error) {
	h.groups.Lock()
	defer h.groups.Unlock()
	g, err := openGroups()
	if err != nil {
		return nil, false, fmt.Errorf("read the security groups: %w", err)
	}
	chains, err := g.ListChainsOfTableFamily(nftables.TableFamilyIPv4)
	if err != nil {
		return nil, false, fmt.Errorf("read the security groups: %w", err)
	}
	there := make(map[string]bool)
	for _, c := range chains {
		if c.Table.Name == groupTable {
			there[c.Name] = true
		}
	}
	for _, s := range containers {
		if slices.ContainsFunc(s.Conf.Rules, func(r cni.Rule) bool { return !there[chainOf(r.Direction, s.Host)] }) {
			lost = append(lost, s)
		}
	}
	return lost, !there[g.forward.Name], nil
}

// RestoreGroup restores the security group of a container.
func (h *Host) RestoreGroup(s Spec) error {
	if err := h.dropRules(&s.Conf.Network, s.Host); err != nil {
		return err
	}
	return h.addRules(s)
}
