package bench

import (
	"strings"
	"testing"
	"time"
)

// A script has the rules that were asked for, rounded up to whole services, and three
// more; their addresses differ.
func TestServiceRules(t *testing.T) {
	for _, n := range []int{1, 8, 20_000, 150_000} {
		rules, addresses := 0, map[string]bool{}
		for line := range strings.Lines(serviceRules(n)) {
			line = strings.TrimSpace(line)
			switch first, _, _ := strings.Cut(line, " "); first {
			case "table", "chain", "type", "}", "":
				continue
			}
			rules++
			if address, ok := strings.CutPrefix(line, "ip daddr "); ok {
				address, _, _ = strings.Cut(address, " ")
				if addresses[address] {
					t.Fatalf("%d rules: two services have %s", n, address)
				}
				addresses[address] = true
			}
		}
		services := (n + rulesPerService - 1) / rulesPerService
		if want := services*rulesPerService + 3; rules != want || len(addresses) != services {
			t.Errorf("%d rules of %d services, want %d of %d", rules, len(addresses), want, services)
		}
	}
}

func TestChurnMetrics(t *testing.T) {
	r := reading{express: 90, regular: 10, daemonTime: 20 * time.Millisecond, inert: 4 * time.Millisecond}
	values := map[string]float64{}
	r.churn(values, 2, &changes{made: 4, sent: 20, regular: 19, late: 3 * time.Microsecond})
	for metric, want := range map[string]float64{
		"express_pct": 90, "daemon_pct": 1, "daemon_ms_per_change": 5, "inert_pct": 0.2, "inert_ms_per_change": 1,
		"concerned_regular_pct": 95, "concerned_late_us": 3,
	} {
		if got := values[metric]; got < want*0.999 || got > want*1.001 {
			t.Errorf("%s is %v, want %v", metric, got, want)
		}
	}
	still := map[string]float64{}
	r.churn(still, 2, &changes{})
	for _, metric := range []string{"daemon_ms_per_change", "inert_ms_per_change", "concerned_regular_pct"} {
		if v, ok := still[metric]; ok {
			t.Errorf("without changes %s is %v", metric, v)
		}
	}
}
