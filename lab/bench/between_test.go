package bench

import (
	"slices"
	"testing"
)

// Between two containers, no native process and no uplink is used. The result is
// found by its name when it is read.
func TestBetween(t *testing.T) {
	for _, p := range Paths {
		e, err := Cost.Between(p.Name)
		if err != nil {
			t.Fatal(err)
		}
		if e.Name != "cost-"+p.Name || e.Path.Name != p.Name || slices.Contains(e.Modes, Native) || slices.Contains(e.Modes, Flowtable) != p.flowtable {
			t.Errorf("%q by %q, modes %v", e.Name, e.Path.Name, e.Modes)
		}
		if _, err := parseResult([]byte(`{"experiment": "quick-` + p.Name + `"}`)); err != nil {
			t.Error(err)
		}
	}
	if _, err := Quick.OverIPv6().Between("routed"); err == nil {
		t.Error("Between accepts an experiment over IPv6")
	}
	if e, err := Quick.Between("native"); err == nil {
		t.Errorf("Between returned %q for an unknown path", e.Name)
	}
}
