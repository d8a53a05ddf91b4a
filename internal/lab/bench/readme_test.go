package bench

import (
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
		{"README.md", "quick", []string{"quick"}},
		{"README.md", "short", []string{"short"}},
		{"README.md", "cost", []string{"cost-6.12"}},
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
