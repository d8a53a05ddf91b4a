package express

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
)

// tunnel is a VXLAN device among the uplinks. Express packets may skip it, and
// the stack beneath: they are put on the wire with the headers that it gives
// them, and unpacked where they arrive.
type tunnel struct {
	device *discover.Device
	kept   string // why packets do not skip it, "" if they do
}

// setTunnels tells the programs which VXLAN devices may be skipped.
func (d *Daemon) setTunnels() {
	v := &d.devices
	for index, t := range v.tunnels {
		if v.uplinks[index].TunnelPort == 0 {
			t.device.Close()
			delete(v.tunnels, index)
		}
	}
	var port uint16
	for _, index := range slices.Sorted(maps.Keys(v.uplinks)) {
		u := v.uplinks[index]
		if u.TunnelPort == 0 {
			continue
		}
		kept := d.keepsTunnel(u, port)
		if kept == "" {
			port = u.TunnelPort
		}
		d.setTunnel(u, kept)
	}
	d.dp.Settings().TunnelPort = uint32(bits.ReverseBytes16(port))
}

func (d *Daemon) setTunnel(u discover.Uplink, kept string) {
	v := &d.devices
	t := v.tunnels[u.Index]
	if t != nil && t.kept == kept {
		return
	}
	if t == nil {
		device, err := discover.OpenDevice(u.Name, u.Index)
		if err != nil {
			d.log.Debug("looking at a VXLAN device", "dev", u.Name, "error", err)
			return // it is gone
		}
		t = &tunnel{device: device}
		v.tunnels[u.Index] = t
		kept = cmp.Or(kept, d.steersTunnel(t))
	}
	t.kept = kept
	if err := d.dp.Track(u.Index, datapath.Delivery{Queue: true, Tunnel: kept == ""}); err != nil {
		d.log.Error("tracking a VXLAN device", "dev", u.Name, "error", err)
		return
	}
	d.newGeneration("what skips " + u.Name)
	d.log.Debug("tunnel", "dev", u.Name, "kept", kept)
}

// keepsTunnel says what packets of a VXLAN device must meet that those which
// skip it do not. port is that of others that are skipped, or 0.
func (d *Daemon) keepsTunnel(u discover.Uplink, port uint16) string {
	if port != 0 && port != u.TunnelPort {
		return "only one port of VXLAN is looked for, and other devices use another"
	}
	if d.policy.xdp[u.Index] {
		return "an XDP program at " + u.Name
	}
	control, err := discover.Control(u.Index, d.devices.qdiscs[u.Index], d.dp.Programs())
	if err != nil {
		return err.Error() // in doubt
	}
	if control != "" {
		return control + " at " + u.Name
	}
	if rule, touched := d.policy.rules.TouchesTunnel(u.TunnelPort); touched {
		return "a rule that judges single packets may touch the tunnel's own: " + rule.String()
	}
	if t := d.devices.tunnels[u.Index]; t != nil {
		return d.steersTunnel(t)
	}
	return ""
}

// steersTunnel says so if a VXLAN device hands packets to other CPUs, where
// those that skip it would overtake them.
func (d *Daemon) steersTunnel(t *tunnel) string {
	if steers, err := t.device.Steers(); err != nil || steers {
		return "receive packet steering (rps_cpus) at it"
	}
	return ""
}

// explainTunnels says which VXLAN devices packets go the whole way of.
func (v *devices) explainTunnels() (all []api.Finding) {
	for _, index := range slices.Sorted(maps.Keys(v.tunnels)) {
		if t := v.tunnels[index]; t.kept != "" {
			all = append(all, api.Finding{
				Level: "note", What: "express packets do not skip " + v.uplinks[index].Name, Why: t.kept,
			})
		}
	}
	return all
}
