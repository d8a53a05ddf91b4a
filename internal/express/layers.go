package express

import (
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/express/rules"
)

// layers are the devices that IP may see directly in place of another, by the
// number of that one: those that are stacked on it, and its VRF.
type layers map[int][]rules.Device

func layersOf(links []netlink.Link) layers {
	vrfs := make(map[int]rules.Device)
	for _, l := range links {
		if l.Type() == "vrf" {
			vrfs[l.Attrs().Index] = ruleDevice(l)
		}
	}
	above := make(layers)
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

func ruleDevice(l netlink.Link) rules.Device {
	return rules.Device{Name: l.Attrs().Name, Index: l.Attrs().Index}
}

// of lists what IP may see in place of a device, that one included, in the
// order of numbers.
func (above layers) of(dev rules.Device) []rules.Device {
	all := []rules.Device{dev}
	for i := 0; i < len(all); i++ {
		for _, next := range above[all[i].Index] {
			if !slices.Contains(all, next) {
				all = append(all, next)
			}
		}
	}
	slices.SortFunc(all, func(a, b rules.Device) int { return a.Index - b.Index })
	return all
}
