package bench

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/lab"
)

// Over VXLAN all steps have names of their own, and there is no mode flowtable.
func TestOverVXLAN(t *testing.T) {
	e := Quick.OverVXLAN()
	if e.Name != "quick_vxlan" || !e.Overlay || Quick.Overlay || len(e.Modes) != 4 {
		t.Errorf("%q, overlay %v, modes %v", e.Name, e.Overlay, e.Modes)
	}
	if s := e.Steps[0]; s.Name != "vxlan_udp_64" || s.Metrics[0].Name != "vxlan_udp_64_msgs" || Quick.Steps[0].Name != "udp_64" {
		t.Errorf("the first step is %q, of %v", s.Name, s.Metrics)
	}
}

// Over each kind of uplink all steps have names of their own, and the messages
// cross that uplink.
func TestOverUplink(t *testing.T) {
	needRoot(t)
	for _, kind := range lab.UplinkKinds() {
		e := Cost.OverUplink(kind)
		if step := kind + "_udp_64"; e.Name != "cost_"+kind || e.Steps[0].Name != step || e.Steps[0].Metrics[0].Name != step+"_insn" {
			t.Errorf("%q, step %q of %v", e.Name, e.Steps[0].Name, e.Steps[0].Metrics)
		}
		b, err := openLab(e)
		if errors.Is(err, unix.EOPNOTSUPP) {
			t.Logf("%s: %v", kind, err)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		step := e.Steps[0]
		step.Spec.Count, step.Spec.WarmUp = 20, 2
		for _, mode := range []Mode{Native, Container} {
			if s, err := (countingBed{b}).take(t.Context(), mode, step); err != nil || s.UplinkPackets < 42 {
				t.Errorf("%s over %s: %d packets crossed %s: %v", mode.Name, kind, s.UplinkPackets, lab.Second, err)
			}
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}
