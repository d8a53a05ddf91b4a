package hooks

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"

	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
)

// tunnel is a VXLAN device among the uplinks. Express packets may skip it and the
// stack beneath: they leave with the headers that it gives them, and are
// decapsulated where they arrive.
type tunnel struct {
	device *discover.Device
	kept   string // why packets do not skip it, "" if they do
}

// Tunnel is a VXLAN device that express packets do not skip.
type Tunnel struct{ Dev, Why string }

// KeptTunnels lists the VXLAN devices that express packets do not skip.
func (h *Hooks) KeptTunnels() (all []Tunnel) {
	for _, index := range slices.Sorted(maps.Keys(h.tunnels)) {
		if t := h.tunnels[index]; t.kept != "" {
			all = append(all, Tunnel{h.uplinks[index].Name, t.kept})
		}
	}
	return all
}

// SetTunnels sets for the programs which VXLAN devices may be skipped. The loop
// calls it when the rules have changed, too.
func (h *Hooks) SetTunnels() {
	for index, t := range h.tunnels {
		if h.uplinks[index].TunnelPort == 0 {
			t.device.Close()
			delete(h.tunnels, index)
		}
	}
	var port uint16
	for _, index := range slices.Sorted(maps.Keys(h.uplinks)) {
		u := h.uplinks[index]
		if u.TunnelPort == 0 {
			continue
		}
		kept := h.keepsTunnel(u, port)
		if kept == "" {
			port = u.TunnelPort
		}
		h.setTunnel(u, kept)
	}
	h.opts.Datapath.Settings().TunnelPort = uint32(bits.ReverseBytes16(port))
}

func (h *Hooks) setTunnel(u discover.Uplink, kept string) {
	t := h.tunnels[u.Index]
	if t != nil && t.kept == kept {
		return
	}
	if t == nil {
		device, err := discover.OpenDevice(u.Name, u.Index)
		if err != nil {
			h.opts.Logger.Debug("opening a VXLAN device", "dev", u.Name, "error", err)
			return // it is gone
		}
		t = &tunnel{device: device}
		h.tunnels[u.Index] = t
		kept = cmp.Or(kept, t.steers())
	}
	t.kept = kept
	if err := h.opts.Datapath.Track(u.Index, datapath.Delivery{Queue: true, Tunnel: kept == ""}); err != nil {
		h.opts.Logger.Error("tracking a VXLAN device", "dev", u.Name, "error", err)
		return
	}
	h.opts.NewGeneration("what skips " + u.Name)
	h.opts.Logger.Debug("tunnel", "dev", u.Name, "kept", kept)
}

// keepsTunnel returns what packets would skip with a VXLAN device, "" if nothing.
// port is that of other devices that are skipped, or 0.
func (h *Hooks) keepsTunnel(u discover.Uplink, port uint16) string {
	if port != 0 && port != u.TunnelPort {
		return "only one port of VXLAN is looked for, and other devices use another"
	}
	if h.path.xdp[u.Index] {
		return "an XDP program at " + u.Name
	}
	control, err := discover.Control(u.Index, h.qdiscs[u.Index], h.opts.Datapath.Programs())
	if err != nil {
		return err.Error() // in doubt
	}
	if control != "" {
		return control + " at " + u.Name
	}
	if rule, touched := h.opts.TouchesTunnel(u.TunnelPort); touched {
		return "a rule that judges single packets may touch the tunnel's own: " + rule.String()
	}
	if t := h.tunnels[u.Index]; t != nil {
		return t.steers()
	}
	return ""
}

// steers returns that a VXLAN device steers packets to other CPUs, where those
// that skip it would overtake them; "" if it does not.
func (t *tunnel) steers() string {
	if steers, err := t.device.Steers(); err != nil || steers {
		return "receive packet steering (rps_cpus) at it"
	}
	return ""
}
