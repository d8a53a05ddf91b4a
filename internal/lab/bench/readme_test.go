package bench

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The tables in the documents are those of the committed results.
func TestDocumentsShowResults(t *testing.T) {
	for _, c := range []struct {
		document, file string
		results        []string
	}{
		{"docs/figures.md", "quick", []string{"quick"}},
		{"docs/figures.md", "short", []string{"short"}},
		{"docs/figures.md", "cost", []string{"cost-6.12"}},
		{"docs/measuring.md", "churn", []string{"churn-20000", "churn-150000", "churn-20000-8000", "churn-6.12"}},
		{"docs/measuring.md", "cpus", []string{"cpus"}},
		{"docs/measuring.md", "connections", []string{"connections"}},
		{"docs/measuring.md", "quick", []string{"quick-vxlan", "quick6", "quick-bridge", "quick-macvlan", "quick-tracked", "quick-hairpin", "quick-routed", "quick-bridged"}},
		{"docs/measuring.md", "cost", []string{"cost-vlan-6.12", "cost-bond-6.12", "cost-bridge-6.12", "cost-macvlan-6.12", "cost-wireguard-6.12", "cost6-6.12", "cost-netkit-6.12", "cost6-netkit-6.12",
			"cost-tracked-6.12", "cost-hairpin-6.12", "cost-routed-6.12", "cost-bridged-6.12", "cost-vxlan-6.12", "cost-host-6.12"}},
	} {
		text, err := os.ReadFile("../../../" + c.document)
		if err != nil {
			t.Fatal(err)
		}
		summaries, err := ReadSummaries("../../../results/" + c.file + ".json")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range c.results {
			r, err := summaries.Result(name)
			if err != nil {
				t.Fatal(err)
			}
			var table strings.Builder
			if err := r.WriteTable(&table); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), table.String()) {
				t.Errorf("%s lacks what \"scon bench show results/%s.json %s\" prints:\n%s", c.document, c.file, name, &table)
			}
		}
	}
}

// The README's comparison with the flowtable is that of the committed result, and its
// flowtable the one that was measured.
func TestREADMEComparesWithFlowtable(t *testing.T) {
	readme, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if rules := fmt.Sprintf(flowtableRules, "ip fast", "eth0, veth1a2b3c4"); !strings.Contains(string(readme), rules) {
		t.Errorf("README.md lacks these rules:\n%s", rules)
	}
	summaries, err := ReadSummaries("../../../results/cost.json")
	if err != nil {
		t.Fatal(err)
	}
	r, err := summaries.Result("cost-6.12")
	if err != nil {
		t.Fatal(err)
	}
	for metric, message := range map[string]string{
		"udp_64_insn": "64 bytes by UDP", "tcp_64_insn": "64 bytes by TCP", "tcp_crr_insn": "TCP: connect, one request, close",
	} {
		native := 1 / r.Ratios["container/native"][metric].Median
		row := fmt.Sprintf("| %s | %.3f | %.3f | %.3f |\n", message,
			r.Ratios["flowtable/container"][metric].Median, r.Ratios["express/container"][metric].Median, native)
		if !strings.Contains(string(readme), row) {
			t.Errorf("README.md lacks %s", row)
		}
	}
}
