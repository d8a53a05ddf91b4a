package startup

import (
	"io"
	"time"

	"github.com/scon-project/scon/internal/metrics"
	"github.com/scon-project/scon/internal/startup/control"
)

var (
	attachments = metrics.Gauge("scon_startup_attachments", "Devices of containers.", "network")
	addresses   = metrics.Gauge("scon_startup_addresses", "Leased addresses, including those of the pool.", "network")
	handedOver  = metrics.Counter("scon_startup_handed_over_total", "Pooled namespaces handed over to containers.")
	madeInPlace = metrics.Counter("scon_startup_in_place_total", "Containers whose device was made in their own namespace.", "reason")
	poolReady   = metrics.Gauge("scon_startup_pool_ready", "Prepared namespaces in the pool.", "network")
	poolTarget  = metrics.Gauge("scon_startup_pool_target", "Target number of prepared namespaces.", "network")
	poolMissed  = metrics.Counter("scon_startup_pool_missed_total", "Containers that found the pool empty.", "network")
	stageInside = metrics.Gauge("scon_startup_stage_containers", "Containers in a stage.", "stage")
	stageWait   = metrics.Gauge("scon_startup_stage_waiting", "Containers that wait for admission to a stage.", "stage")
	stageTimes  = metrics.Histogram("scon_startup_stage_seconds", "Times that containers took for a stage, the wait for admission included.", "stage")
)

// writeMetrics writes the service's state in Prometheus' text format.
func writeMetrics(w io.Writer, s control.Startup, times map[Stage]metrics.Times, started time.Time) error {
	p := make(metrics.Page)
	byNetwork := make(map[string]uint64)
	for _, n := range s.Networks {
		byNetwork[n.Name] = 0
		p.Put(addresses, float64(n.Addresses), n.Name)
		if n.Pool != nil {
			p.Put(poolReady, float64(n.Pool.Ready), n.Name)
			p.Put(poolTarget, float64(n.Pool.Target), n.Name)
			p.Put(poolMissed, float64(n.Pool.Missed), n.Name)
		}
	}
	for _, a := range s.Attachments {
		byNetwork[a.Network]++
	}
	p.Each(attachments, byNetwork)
	p.Put(handedOver, float64(s.HandedOver))
	p.Each(madeInPlace, s.InPlace)
	for name, stage := range s.Stages {
		p.Put(stageInside, float64(stage.Inside), name)
		p.Put(stageWait, float64(stage.Waiting), name)
		p.PutTimes(stageTimes, times[Stage(name)], name)
	}
	if err := p.Process(started); err != nil {
		return err
	}
	return p.Write(w)
}
