package hooks

import (
	"slices"
	"sort"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/express/rules"
)

// uppers are the upper devices of each device, by its ifindex: those that are
// stacked on it, and its VRF. IP may see packets by them in its place.
type uppers map[int][]rules.Device

func uppersOf(links []netlink.Link) uppers {
	vrfs := make(map[int]rules.Device)
	for _, l := range links {
		if l.Type() == "vrf" {
			vrfs[l.Attrs().Index] = ruleDevice(l)
		}
	}
	above := make(uppers)
	for _, l := range links {
		a := l.Attrs()
		if a.ParentIndex != 0 && a.NetNsID < 0 {
			above[a.ParentIndex] = append(above[a.ParentIndex], ruleDevice(l))
		}
		if vrf, ok := vrfs[a.MasterIndex]; ok {
			above[a.Index] = append(above[a.Index], vrf)
		}
	}
	return above
}

// overBridges are the bridges, and the devices that are stacked on one, by their ifindices.
func overBridges(links []netlink.Link) map[int]bool {
	bridges, parents := make(map[int]bool), make(map[int]int)
	for _, l := range links {
		a := l.Attrs()
		bridges[a.Index] = l.Type() == "bridge"
		if a.NetNsID < 0 {
			parents[a.Index] = a.ParentIndex
		}
	}
	over := make(map[int]bool)
	const deepest = 8 // MAX_NEST_DEV of the kernel
	for index := range bridges {
		for lower, depth := index, 0; lower != 0 && depth <= deepest && !over[index]; lower, depth = parents[lower], depth+1 {
			over[index] = bridges[lower]
		}
	}
	return over
}

func ruleDevice(l netlink.Link) rules.Device {
	return rules.Device{Name: l.Attrs().Name, Index: l.Attrs().Index}
}

// of lists a device and all that are above it, sorted by ifindex.
func (above uppers) of(dev rules.Device) []rules.Device {
	all := []rules.Device{dev}
	for i := 0; i < len(all); i++ {
		for _, next := range above[all[i].Index] {
			if !slices.Contains(all, next) {
				all = append(all, next)
			}
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].Index < all[j].Index })
	return all
}
