package bench

import (
	"slices"
	"testing"
)

// Between two containers no native process takes part, and no uplink; the result
// is read back by its name.
func TestBetween(t *testing.T) {
	for _, w := range Ways {
		e, err := Cost.Between(w.Name)
		if err != nil {
			t.Fatal(err)
		}
		if e.Name != "cost-"+w.Name || e.Way.Name != w.Name || slices.Contains(e.Modes, Native) || slices.Contains(e.Modes, Flowtable) != w.flowtable {
			t.Errorf("%q by %q, modes %v", e.Name, e.Way.Name, e.Modes)
		}
		if _, err := parseResult([]byte(`{"experiment": "quick-` + w.Name + `"}`)); err != nil {
			t.Error(err)
		}
	}
	if _, err := Quick.OverIPv6().Between("routed"); err == nil {
		t.Error("there is one over IPv6")
	}
	if e, err := Quick.Between("native"); err == nil {
		t.Errorf("there is %q", e.Name)
	}
}
