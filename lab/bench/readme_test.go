package bench

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/scon-project/scon/lab/test/pages"
)

// The tables in the documents are those of the committed results, or some of their lines.
func TestDocumentsShowResults(t *testing.T) {
	for _, c := range []struct {
		document, file string
		results        []string
	}{
		{"quick", "quick", []string{"quick"}},
		{"short", "short", []string{"short"}},
		{"cost", "cost", []string{"cost-6.12", "cost-newest", "cost-netkit-6.12"}},
		{"host", "cost", []string{"cost-host-6.12"}},
		{"churn", "churn", []string{"churn-20000"}},
		{"cpus", "cpus", []string{"cpus"}},
		{"scale", "connections", []string{"connections"}},
		{"other-ways", "quick", []string{"quick-vxlan", "quick-tracked"}},
		{"other-ways", "cost", []string{"cost-vlan-6.12", "cost-tracked-6.12", "cost-tracked-out-6.12", "cost-bridged-out-6.12"}},
	} {
		summaries, err := ReadSummaries("../results/" + c.file + ".json")
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
			pages.WantShown(t, c.document, "scon bench show lab/results/"+c.file+".json "+name, table.String())
		}
	}
}

// README compares with the flowtable by the committed results, on both kernels,
// and the guide's flowtable is the one that was measured.
func TestDocumentsCompareWithFlowtable(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	guide, err := os.ReadFile("../../docs/guides/flowtable.md")
	if err != nil {
		t.Fatal(err)
	}
	if rules := fmt.Sprintf(flowtableRules, "ip fast", "eth0, veth1a2b3c4"); !strings.Contains(string(guide), rules) {
		t.Errorf("docs/guides/flowtable.md lacks these rules:\n%s", rules)
	}
	summaries, err := ReadSummaries("../results/cost.json")
	if err != nil {
		t.Fatal(err)
	}
	for metric, message := range map[string]string{
		"udp_64_insn": "64 bytes by UDP", "tcp_64_insn": "64 bytes by TCP", "tcp_crr_insn": "TCP: connect, one request, close",
	} {
		row := "| " + message
		for _, name := range []string{"cost-6.12", "cost-newest"} {
			r, err := summaries.Result(name)
			if err != nil {
				t.Fatal(err)
			}
			row += fmt.Sprintf(" | %.3f | %.3f | %.3f | %.3f", r.Ratios["flowtable/container"][metric].Median,
				r.Ratios["express/container"][metric].Median, r.Ratios["express_short/container"][metric].Median, 1/r.Ratios["container/native"][metric].Median)
		}
		if !strings.Contains(string(readme), row+" |\n") {
			t.Errorf("README.md lacks %s |", row)
		}
	}
}
