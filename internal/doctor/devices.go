package doctor

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/discover"
)

// findDevices lists the devices of the namespace that a daemon hooks, and those
// that it does not.
func findDevices() []api.Finding {
	top, err := discover.Scan(discover.Options{})
	if err != nil {
		return []api.Finding{{Level: warn, What: err.Error()}}
	}
	var found []api.Finding
	if len(top.Ports) == 0 {
		found = append(found, api.Finding{
			Level: note, What: "no container in this network namespace",
			Remedy: "start one, or name its namespace with --netns",
		})
	}
	found = append(found, controlled(top)...)
	for _, p := range top.Ports {
		name := p.Name
		if !p.Routed() {
			name = fmt.Sprintf("%s of %s", p.Name, p.Bridge.Name)
		}
		found = append(found, hookable("port", p.Index, name))
	}
	if len(top.Uplinks) == 0 {
		found = append(found, api.Finding{
			Level: note, What: "no device by which traffic leaves this network namespace",
			Why: "no route goes out of one",
		})
	}
	for _, u := range top.Uplinks {
		found = append(found, hookable("uplink", u.Index, u.Name))
	}
	found = append(found, translated(top)...)
	found = append(found, asked(top)...)
	for _, s := range top.Skipped {
		found = append(found, api.Finding{Level: note, What: s.Dev + " stays regular", Why: s.Reason})
	}
	return found
}

// asked finds a queue that keeps connections regular by what it asks.
func asked(top discover.Topology) []api.Finding {
	q := top.Asks
	if q.At == "" {
		return nil
	}
	which := "connections with translated addresses"
	if q.All {
		which = "all connections"
	}
	return []api.Finding{{
		Level: warn, What: which + " stay regular: " + q.At,
		Why:    "it may ask conntrack or the route, which express packets lack there, or the sender's socket or the input device, which differ",
		Remedy: "do without that option if it is not needed, for cake 'tc qdisc change ... nonat'; give filters of fw handles",
	}}
}

// translated finds uplinks that are bridges with bridge netfilter.
func translated(top discover.Topology) (found []api.Finding) {
	const setting = "net.bridge.bridge-nf-call-iptables"
	value, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(setting, ".", "/"))
	if err != nil || strings.TrimSpace(string(value)) == "0" {
		return nil
	}
	for _, u := range top.Uplinks {
		isUplink := func(l netlink.Link) bool { return l.Attrs().Index == u.Index && l.Type() == "bridge" }
		if slices.ContainsFunc(top.Links, isUplink) {
			found = append(found, api.Finding{
				Level: note, What: fmt.Sprintf("packets that enter by bridge %s stay regular", u.Name),
				Why:    setting + " is on: addresses are translated before the bridge device receives the packet",
				Remedy: "sysctl -w " + setting + "=0, if no iptables rule concerns packets within a bridge",
			})
		}
	}
	return found
}

// controlled finds bridges whose ports stay regular because the bridge device has
// a qdisc or a filter, or steers packets.
func controlled(top discover.Topology) (found []api.Finding) {
	for _, b := range top.Bridges {
		switch steers, err := steering(b); {
		case err != nil:
			found = append(found, api.Finding{
				Level: warn, What: fmt.Sprintf("containers of bridge %s stay regular", b.Name),
				Why:    "whether it hands packets to other CPUs (rps_cpus) cannot be read: " + err.Error(),
				Remedy: "mount a sysfs of this network namespace at /sys",
			})
		case steers:
			found = append(found, api.Finding{
				Level: warn, What: fmt.Sprintf("containers of bridge %s stay regular", b.Name),
				Why:    "it hands packets to other CPUs (rps_cpus), where they would be overtaken",
				Remedy: "steer them at the containers' ports",
			})
		}
		what, err := discover.Control(b.Index, top.Qdiscs[b.Index], nil)
		if err == nil && what != "" {
			found = append(found, api.Finding{
				Level: warn, What: fmt.Sprintf("containers of bridge %s stay regular", b.Name),
				Why:    "their packets must pass its " + what,
				Remedy: "shape or filter at the uplink or at the containers' ports",
			})
		}
	}
	return found
}

// steering reports whether a bridge steers packets.
func steering(b discover.Bridge) (bool, error) {
	device, err := discover.OpenDevice(b.Name, b.Index, b.Index)
	if err != nil {
		return false, err
	}
	defer device.Close()
	return device.Steers()
}

// hookable reports whether a device may be hooked.
func hookable(role string, ifindex int, name string) api.Finding {
	filter, err := discover.ForeignIngress(ifindex)
	switch {
	case err != nil:
		return api.Finding{Level: note, What: fmt.Sprintf("%s %s", role, name), Why: err.Error()}
	case filter != "":
		return api.Finding{
			Level: warn, What: fmt.Sprintf("%s %s stays regular", role, name),
			Why:    "its ingress filter " + filter + " must process every packet",
			Remedy: "remove the filter if nothing needs it",
		}
	default:
		return api.Finding{Level: ok, What: fmt.Sprintf("%s %s can be hooked", role, name)}
	}
}
