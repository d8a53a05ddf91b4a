package pipe

import (
	"io"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/pipe/control"
	"github.com/scon-project/scon/test/bed/check"
	"github.com/scon-project/scon/test/bed/metricstest"
)

// The metrics have the broker's values, and docs/metrics.md documents them.
func TestMetrics(t *testing.T) {
	families := metricstest.Parse(t, func(w io.Writer) error {
		return writeMetrics(w, control.Pipe{
			Engines: []string{"sealed"}, Processes: 2, MemoryBytes: 131072, MemoryLimit: 1 << 28, Made: 5, Grown: 3, SentBytes: 77,
			Refused: map[string]uint64{"network": 4}, Connections: []control.PipeConnection{{Engine: "sealed"}},
		}, time.Now())
	})
	want := map[string]float64{
		`scon_pipe_processes`: 2, `scon_pipe_connections{engine="sealed"}`: 1,
		`scon_pipe_memory_bytes`: 131072, `scon_pipe_memory_limit_bytes`: 1 << 28,
		`scon_pipe_connections_made_total`: 5, `scon_pipe_connections_refused_total{reason="network"}`: 4,
		`scon_pipe_rings_grown_total`: 3, `scon_pipe_sent_bytes_total`: 77,
	}
	if diff := check.Diff(want, metricstest.Values(families)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	metricstest.WantDocumented(t, "../../docs/metrics.md", "pipe", families)
}
