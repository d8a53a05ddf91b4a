package hooks

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/express/rules"
	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/internal/host/tcfilter"
)

// path is the devices on the regular path of containers' packets, and what
// express packets would skip there. It does not change; each scan of the devices
// makes another one.
type path struct {
	// inside lists the devices by which IP may see packets of containers, for
	// each bridge and each port of a routed container.
	inside  map[int][]rules.Device
	outside []rules.Device // those of the uplinks
	// bridged lists the uplinks that are ports of a bridge, by the bridge.
	bridged map[int][]rules.Device
	// skipped are those of them that express packets skip, and controls is what packets
	// must pass there.
	skipped  map[int][]rules.Device
	controls map[int]string
	xdp      map[int]bool // devices with XDP programs
}

// newPath reads the path. Where known, of which only ends of containers' pairs have changed
// since, has nothing that packets must pass, it does not look again.
func newPath(topology discover.Topology, own tcfilter.Own, known *path) path {
	p := path{inside: make(map[int][]rules.Device), bridged: make(map[int][]rules.Device), xdp: make(map[int]bool)}
	above, bridged := uppersOf(topology.Links), overBridges(topology.Links)
	for _, b := range topology.Bridges {
		p.inside[b.Index] = above.of(rules.Device{Name: b.Name, Index: b.Index})
	}
	p.skipped = maps.Clone(p.inside)
	for _, port := range topology.Ports {
		if port.Routed() {
			all := above.of(rules.Device{Name: port.Name, Index: port.Index})
			p.inside[port.Index] = all
			p.skipped[port.Index] = slices.DeleteFunc(slices.Clone(all), isDevice(port.Index))
		}
	}
	for _, u := range topology.Uplinks {
		if u.Bridge.Index != 0 { // IP sees the bridge
			p.bridged[u.Bridge.Index] = append(p.bridged[u.Bridge.Index], rules.Device{Name: u.Name, Index: u.Index})
			continue
		}
		p.outside = append(p.outside, above.of(rules.Device{Name: u.Name, Index: u.Index, Bridge: bridged[u.Index]})...)
	}
	for _, l := range topology.Links {
		p.xdp[l.Attrs().Index] = hasXDP(l)
	}
	p.controls = p.controlsOf(topology.Qdiscs, own, known)
	return p
}

// controlsOf finds qdiscs, filters and programs of others at the devices that
// express packets skip.
func (p *path) controlsOf(qdiscs map[int]string, own tcfilter.Own, known *path) map[int]string {
	controls := make(map[int]string)
	for under, devices := range p.skipped {
		if known != nil && known.controls[under] == "" && slices.Equal(known.skipped[under], devices) {
			continue
		}
		for _, dev := range devices {
			what, err := discover.Control(dev.Index, qdiscs[dev.Index], own)
			switch {
			case p.xdp[dev.Index]:
				what = "an XDP program"
			case errors.Is(err, unix.ENODEV):
				continue // its removal is announced
			case err != nil:
				what = err.Error() // in doubt
			}
			if what != "" {
				controls[under] = fmt.Sprintf("packets of its bridge must pass what %s has: %s", dev.Name, what)
			}
		}
	}
	return controls
}

// sameDevices reports whether rules may name the same devices on both paths.
func (p path) sameDevices(other path) bool {
	equal := func(a, b map[int][]rules.Device) bool { return maps.EqualFunc(a, b, slices.Equal[[]rules.Device]) }
	return slices.Equal(p.outside, other.outside) && equal(p.inside, other.inside) && equal(p.bridged, other.bridged)
}

// passes reports whether packets pass a device.
func (p path) passes(ifindex int) bool {
	for _, inside := range p.inside {
		if slices.ContainsFunc(inside, isDevice(ifindex)) {
			return true
		}
	}
	return slices.ContainsFunc(p.outside, isDevice(ifindex))
}

// changedXDP returns a device inside that has got or lost an XDP program since
// the path was read, "" if there is none.
func (p path) changedXDP(links *nlmsg.Requests) (dev string) {
	for _, inside := range p.inside {
		for _, d := range inside {
			if has, err := discover.HasXDP(links, d.Index); err == nil && has != p.xdp[d.Index] {
				dev = d.Name
			}
		}
	}
	return dev
}

func isDevice(ifindex int) func(rules.Device) bool {
	return func(d rules.Device) bool { return d.Index == ifindex }
}

// hasXDP reports whether a device has an XDP program, of whatever kind.
func hasXDP(l netlink.Link) bool {
	return l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached
}
