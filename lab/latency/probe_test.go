package latency

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/nstest"
)

// A probe measures repeatedly and leaves nothing behind.
func TestProbe(t *testing.T) {
	left := nstest.Left(t)
	const name = "probe"
	p, err := OpenProbe(t.Context(), name, 2, 1000, 50*time.Millisecond)
	if errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	namespaces := p.Namespaces()
	if len(namespaces) != 4 || !strings.Contains(namespaces[0], name) { // including both ends
		t.Errorf("namespaces %q", namespaces)
	}
	for range 2 {
		v, err := p.Measure(t.Context())
		if err != nil || v["p50_us"] <= 0 || v["p999_us"] < v["p50_us"] {
			t.Errorf("metrics %v, %v", v, err)
		}
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	left("scon-" + lineName(name, 2))
}
