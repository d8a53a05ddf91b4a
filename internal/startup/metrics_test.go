package startup

import (
	"io"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/metrics"
	"github.com/scon-project/scon/internal/startup/control"
	"github.com/scon-project/scon/test/bed/check"
	"github.com/scon-project/scon/test/bed/metricstest"
)

// Prometheus parses the startup service's metrics, which match docs/metrics.md.
func TestMetrics(t *testing.T) {
	var times metrics.Times
	times.Add(time.Second / 2)
	families := metricstest.Parse(t, func(w io.Writer) error {
		return writeMetrics(w, control.Startup{
			Networks: []control.StartupNetwork{
				{Name: "net", Addresses: 9, Pool: &control.StartupPool{Ready: 7, Target: 8, Missed: 2}}, {Name: "bare"},
			},
			Stages:     map[string]control.StartupStage{"netns": {Inside: 1, Waiting: 2, Ended: 3}},
			HandedOver: 4, InPlace: map[string]uint64{"the pool is empty": 5},
			Attachments: []control.StartupAttachment{{Network: "net"}},
		}, map[Stage]metrics.Times{StageNetNS: times}, time.Now())
	})
	want := map[string]float64{
		`scon_startup_attachments{network="net"}`: 1, `scon_startup_attachments{network="bare"}`: 0,
		`scon_startup_addresses{network="net"}`: 9, `scon_startup_addresses{network="bare"}`: 0,
		`scon_startup_handed_over_total`: 4, `scon_startup_in_place_total{reason="the pool is empty"}`: 5,
		`scon_startup_pool_ready{network="net"}`: 7, `scon_startup_pool_target{network="net"}`: 8,
		`scon_startup_pool_missed_total{network="net"}`:   2,
		`scon_startup_stage_containers{stage="netns"}`:    1,
		`scon_startup_stage_waiting{stage="netns"}`:       2,
		`scon_startup_stage_seconds_count{stage="netns"}`: 1, `scon_startup_stage_seconds_sum{stage="netns"}`: 0.5,
	}
	if diff := check.Diff(want, metricstest.Values(families)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	metricstest.WantDocumented(t, "../../docs/metrics.md", "startup", families)
}
