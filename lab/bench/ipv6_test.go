package bench

import (
	"slices"
	"testing"
)

// Over IPv6 all steps and metrics have names of their own and yield the same values
// as over IPv4.
func TestOverIPv6(t *testing.T) {
	e := Cost.OverIPv6()
	if e.Name != "cost6" || !e.IPv6 || Cost.IPv6 || len(e.Steps) != len(Cost.Steps) {
		t.Errorf("%q, IPv6 %v, %d steps", e.Name, e.IPv6, len(e.Steps))
	}
	for i, s := range e.Steps {
		if s.Name == Cost.Steps[i].Name {
			t.Errorf("step %s has no name of its own", s.Name)
		}
		values := s.Values(Measurement{})
		for _, m := range s.Metrics {
			if _, ok := values[m.Name]; !ok {
				t.Errorf("step %s yields no %s but %v", s.Name, m.Name, values)
			}
		}
	}
	if s := e.Steps[0]; s.Name != "udp6_64" || s.Metrics[0].Name != "udp6_64_insn" || Cost.Steps[0].Metrics[0].Name != "udp_64_insn" {
		t.Errorf("the first step is %q, of %v", s.Name, s.Metrics)
	}
	quick := Quick.OverIPv6().metrics()
	if !slices.ContainsFunc(quick, func(m Metric) bool { return m.Name == "softirq6_ns_per_packet" }) {
		t.Errorf("metrics %v", quick)
	}
}
