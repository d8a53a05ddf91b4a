package hooks

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/express/rules"
)

// ageing is how long bridges keep a MAC address, at least. The kernel does not announce
// it: it is polled.
type ageing struct {
	least time.Duration
	asked time.Time
}

// ageingInterval is how often bridges are asked.
const ageingInterval = 5 * time.Second

// Ageing returns the shortest time that a bridge on the path of containers' packets keeps a
// MAC address, the longest one there is without a bridge.
func (h *Hooks) Ageing() time.Duration { return h.ageing.least }

// ask asks the bridges among devices again, if that is due. What is known stays while one cannot
// be asked.
func (a ageing) ask(devices []rules.Device, now time.Time) ageing {
	const userHZ = 100
	if now.Sub(a.asked) < ageingInterval {
		return a
	}
	fresh := ageing{math.MaxInt64, now}
	for _, dev := range devices {
		l, err := netlink.LinkByIndex(dev.Index)
		if err != nil && !errors.As(err, new(netlink.LinkNotFoundError)) {
			return a
		}
		if bridge, ok := l.(*netlink.Bridge); ok && bridge.AgeingTime != nil {
			fresh.least = min(fresh.least, time.Duration(*bridge.AgeingTime)*time.Second/userHZ)
		}
	}
	return fresh
}

// bridges are the devices on the path that may be bridges.
func (p path) bridges() (all []rules.Device) {
	all = append(all, p.outside...)
	for bridge, devices := range p.skipped { // a routed container's port does not skip itself
		if i := slices.IndexFunc(devices, isDevice(bridge)); i >= 0 {
			all = append(all, devices[i])
		}
	}
	return all
}
