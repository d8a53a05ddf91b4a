package bench

import (
	"os"
	"strings"
	"testing"
)

// The tables in documents are those of the committed results.
func TestDocumentsShowResults(t *testing.T) {
	for document, results := range map[string][]string{
		"README.md": {"quick", "short", "cost-6.12"},
		"docs/measuring.md": {"cost-vlan-6.12", "cost-bond-6.12", "cost-bridge-6.12", "cost-macvlan-6.12", "cost-wireguard-6.12", "cost6-6.12", "cost-netkit-6.12", "cost6-netkit-6.12", "quick-vxlan", "quick6", "quick-bridge", "quick-macvlan", "quick-tracked", "quick-hairpin", "quick-routed", "quick-bridged",
			"cost-tracked-6.12", "cost-hairpin-6.12", "cost-routed-6.12", "cost-bridged-6.12", "cost-vxlan-6.12"},
	} {
		text, err := os.ReadFile("../../../" + document)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range results {
			r, err := ReadResult("../../../results/" + name + ".json")
			if err != nil {
				t.Fatal(err)
			}
			var table strings.Builder
			if err := r.WriteTable(&table); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), table.String()) {
				t.Errorf("%s lacks the table of results/%s.json, which \"scon bench show results/%[2]s.json\" prints:\n%s", document, name, &table)
			}
		}
	}
}
