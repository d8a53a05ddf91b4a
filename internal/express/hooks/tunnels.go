package hooks

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"math/bits"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/express/rules"
)

// tunnels are the VXLAN and IPIP devices among the uplinks. Express packets may skip them
// and the stack beneath: they leave with the headers that the device gives them,
// and are decapsulated where they arrive.
type tunnels struct {
	dp            *datapath.Datapath
	log           *slog.Logger
	newGeneration func(reason string)
	touches       func(t rules.Tunnel) (rules.Rule, bool)
	open          map[int]*tunnel
}

// tunnel is one of them.
type tunnel struct {
	rps
	kept    string // why packets do not skip it, "" if they do
	byRoute bool   // nor do they go by it
}

// Tunnel is a VXLAN or IPIP device that express packets do not skip.
type Tunnel struct {
	Dev, Why string
	ByRoute  bool // nor do they go by it
}

// KeptTunnels lists the tunnels' devices that express packets do not skip.
func (h *Hooks) KeptTunnels() (all []Tunnel) {
	for _, index := range slices.Sorted(maps.Keys(h.tunnels.open)) {
		if t := h.tunnels.open[index]; t.kept != "" {
			all = append(all, Tunnel{h.uplinks[index].Name, t.kept, h.uplinks[index].ByRoute})
		}
	}
	return all
}

// SetTunnels writes for the programs which tunnels' devices may be skipped. The loop
// calls it when the rules have changed, too.
func (h *Hooks) SetTunnels() { h.tunnels.set(h.uplinks, h.qdiscs, h.path.xdp) }

// set decides about the tunnels' devices among uplinks. qdiscs and xdp are what the
// devices have, by ifindex.
func (v *tunnels) set(uplinks map[int]discover.Uplink, qdiscs map[int]string, xdp map[int]bool) {
	for index, t := range v.open {
		if !uplinks[index].Tunnels() {
			t.close()
			delete(v.open, index)
		}
	}
	var port uint16
	var skipped uint32
	for _, index := range slices.Sorted(maps.Keys(uplinks)) {
		u := uplinks[index]
		if !u.Tunnels() {
			continue
		}
		kept := ""
		switch {
		case port != 0 && u.TunnelPort != 0 && port != u.TunnelPort:
			kept = "only one port of VXLAN is supported, and other devices use another"
		case xdp[index]:
			kept = "an XDP program at " + u.Name
		default:
			kept = v.keeps(u, qdiscs[index])
		}
		switch {
		case kept != "":
		case u.IPIP:
			skipped = datapath.TunnelIPIP
		default:
			port = u.TunnelPort
		}
		v.setOne(u, kept)
	}
	v.dp.Settings().Tunnels = skipped | uint32(bits.ReverseBytes16(port))
}

// setOne writes whether packets skip a device, if that has changed.
func (v *tunnels) setOne(u discover.Uplink, kept string) {
	t := v.open[u.Index]
	if t != nil && t.kept == kept && t.byRoute == u.ByRoute {
		return
	}
	if t == nil {
		t = &tunnel{rps: rps{u.Name, u.Index, u.Index, nil}}
		if u.IPIP {
			t.peer = u.Below
		}
		v.open[u.Index] = t
		kept = cmp.Or(kept, t.steering())
	}
	t.kept, t.byRoute = kept, u.ByRoute
	if err := v.dp.Track(u.Index, datapath.Delivery{Bare: u.Bare(), Queue: true, Tunnel: kept == "", ByRoute: u.ByRoute}); err != nil {
		v.log.Error("tracking a tunnel's device", "dev", u.Name, "error", err)
		return
	}
	v.newGeneration("what skips " + u.Name)
	v.log.Debug("tunnel", "dev", u.Name, "kept", kept)
}

// keeps returns what packets would skip with a tunnel's device, "" if nothing; qdisc
// is the kind of its qdisc.
func (v *tunnels) keeps(u discover.Uplink, qdisc string) string {
	control, err := discover.Control(u.Index, qdisc, v.dp.Programs())
	if err != nil {
		return err.Error() // in doubt
	}
	if control != "" {
		return control + " at " + u.Name
	}
	if rule, touched := v.touches(outerOf(u)); touched {
		return "a rule that judges single packets may touch the tunnel's own: " + rule.String()
	}
	if t := v.open[u.Index]; t != nil {
		return t.steering()
	}
	return ""
}

// outerOf is what is known of the packets that a tunnel's device sends.
func outerOf(u discover.Uplink) rules.Tunnel {
	if u.IPIP {
		return rules.Tunnel{Proto: unix.IPPROTO_IPIP}
	}
	return rules.Tunnel{Proto: unix.IPPROTO_UDP, Port: u.TunnelPort}
}

func (v *tunnels) close() {
	for _, t := range v.open {
		t.close()
	}
}

// steering returns that a tunnel's device steers packets to other CPUs, where those that skip
// it would overtake them, or that this cannot be read; "" if it does not.
func (t *tunnel) steering() string {
	switch steers, err := t.steers(); {
	case err != nil:
		return fmt.Sprintf("whether it hands packets to other CPUs (rps_cpus) cannot be read (%v)", err)
	case steers:
		return "receive packet steering (rps_cpus) at it"
	}
	return ""
}
