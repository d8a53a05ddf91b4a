package bench

import (
	"slices"
	"testing"

	"github.com/scon-project/scon/lab/bench/peer"
	"github.com/scon-project/scon/test/bed/lab"
)

// Between two containers, no native process and no uplink is used; to outside both are.
// The result is found by its name when it is read.
func TestBetween(t *testing.T) {
	for _, p := range Paths {
		e, err := Cost.Between(p.Name)
		if err != nil {
			t.Fatal(err)
		}
		if e.Name != "cost-"+p.Name || e.Path.Name != p.Name || slices.Contains(e.Modes, Native) != (p.isOut() && !p.hidden) || slices.Contains(e.Modes, Flowtable) != p.flowtable {
			t.Errorf("%q by %q, modes %v", e.Name, e.Path.Name, e.Modes)
		}
		if _, err := parseResult([]byte(`{"experiment": "quick-` + p.Name + `"}`)); err != nil {
			t.Error(err)
		}
	}
	for name, storms := range map[string]int{"bridged": 0, "swarm": 0, "bridged-out": 2, "tracked-out": 2} {
		if e, err := Cost.Between(name); err != nil || len(e.Steps)-len(Cost.Steps) != storms {
			t.Errorf("%s: %d steps, %d of them storms: %v", name, len(e.Steps), storms, err)
		}
	}
	for name, few := range map[string]bool{"tracked-out": true, "tracked": false} {
		if e, err := Cost.Between(name); err != nil || e.Steps[0].FewExpress != few {
			t.Errorf("%s: UDP without replies may stay regular: %v, %v", name, e.Steps[0].FewExpress, err)
		}
	}
	if _, err := Quick.OverIPv6().Between("routed"); err == nil {
		t.Error("Between accepts an experiment over IPv6")
	}
	if e, err := Quick.Between("native"); err == nil {
		t.Errorf("Between returned %q for an unknown path", e.Name)
	}
}

// The paths to outside lead there: messages of all modes cross the uplink, and a
// container's go by the bridge, which counts none of them. So do storms, which arrive at the
// other end.
func TestOutside(t *testing.T) {
	needRoot(t)
	for _, p := range Paths {
		if !p.isOut() {
			continue
		}
		e := Cost.on(&p)
		b, err := openLab(e)
		if err != nil {
			t.Fatal(err)
		}
		step := e.Steps[0]
		step.Spec.Count, step.Spec.WarmUp = 20, 2
		for _, mode := range e.Modes {
			if mode != Native && mode != Container {
				continue
			}
			s, err := (countingBed{b}).take(t.Context(), mode, step)
			if err != nil || s.UplinkPackets < 42 || (s.BridgePackets < 42) != (mode == Container) {
				t.Errorf("%s, %s: %d packets crossed %s, %d the bridge's own device: %v",
					p.Name, mode.Name, s.UplinkPackets, lab.Uplink, s.BridgePackets, err)
			}
			for _, storm := range e.Steps {
				if storm.Spec.Pattern != peer.Storm {
					continue
				}
				storm.Spec.Count, storm.Spec.WarmUp = 20, 2
				if s, err := (countingBed{b}).take(t.Context(), mode, storm); err != nil || s.UplinkPackets < 42 || s.Values[storm.Name+"_insn"] <= 0 {
					t.Errorf("%s, %s, %s: %d packets crossed %s, %v: %v", p.Name, mode.Name, storm.Name, s.UplinkPackets, lab.Uplink, s.Values, err)
				}
			}
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}
