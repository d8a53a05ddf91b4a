package live

import (
	"encoding/json"
	"math"
	"os"
	"testing"
	"time"
)

func TestParseSoftirq(t *testing.T) {
	const stat = "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 70 8 9 10\n"
	if d, err := parseSoftirq(stat); err != nil || d != 70*time.Millisecond {
		t.Errorf("%v, %v, want 70 ms", d, err)
	}
	for _, wrong := range []string{"", "cpu 1 2", "cpu0 1 2 3 4 5 6 7", "cpu 1 2 3 4 5 6 x"} {
		if d, err := parseSoftirq(wrong); err == nil {
			t.Errorf("%q is read as %v", wrong, d)
		}
	}
}

// The estimate's cost is that of the committed result.
func TestSavedPerPacket(t *testing.T) {
	text, err := os.ReadFile("../../lab/results/quick.json")
	if err != nil {
		t.Fatal(err)
	}
	var results map[string]struct {
		Modes map[string]map[string][]float64
	}
	if err := json.Unmarshal(text, &results); err != nil {
		t.Fatal(err)
	}
	median := func(mode string) float64 {
		quartiles := results["quick"].Modes[mode]["softirq_ns_per_packet"]
		return quartiles[len(quartiles)/2]
	}
	if counted := median("container") - median("express"); math.Abs(counted-float64(SavedPerPacket)) > 0.5 {
		t.Errorf("lab/results/quick.json has %.1f ns, SavedPerPacket is %v", counted, SavedPerPacket)
	}
}
