package bench

import "testing"

// Over VXLAN everything has names of its own, and no flowtable.
func TestOverVXLAN(t *testing.T) {
	e := Quick.OverVXLAN()
	if e.Name != "quick_vxlan" || !e.Overlay || Quick.Overlay || len(e.Modes) != 3 {
		t.Errorf("%q, overlay %v, modes %v", e.Name, e.Overlay, e.Modes)
	}
	if s := e.Steps[0]; s.Name != "vxlan_udp_64" || s.Metrics[0].Name != "vxlan_udp_64_msgs" || Quick.Steps[0].Name != "udp_64" {
		t.Errorf("the first step is %q, of %v", s.Name, s.Metrics)
	}
}
