package pipe

import (
	"io"
	"time"

	"github.com/scon-project/scon/internal/metrics"
	"github.com/scon-project/scon/internal/pipe/control"
)

var (
	processesGauge   = metrics.Gauge("scon_pipe_processes", "Processes connected to the pipe's broker.")
	connectionsGauge = metrics.Gauge("scon_pipe_connections", "Connections of the pipe.", "engine")
	memoryGauge      = metrics.Gauge("scon_pipe_memory_bytes", "Memory of the pipe's rings.")
	limitGauge       = metrics.Gauge("scon_pipe_memory_limit_bytes", "Memory limit of the pipe's rings.")
	madeCounter      = metrics.Counter("scon_pipe_connections_made_total", "Connections of the pipe.")
	refusedCounter   = metrics.Counter("scon_pipe_connections_refused_total", "Connections that the broker refused.", "reason")
	grownCounter     = metrics.Counter("scon_pipe_rings_grown_total", "Rings enlarged.")
	sentCounter      = metrics.Counter("scon_pipe_sent_bytes_total", "Bytes sent by the pipe's connections, as their ends report.")
)

// writeMetrics writes the broker's state in Prometheus' text format.
func writeMetrics(w io.Writer, s control.Pipe, started time.Time) error {
	p := make(metrics.Page)
	p.Put(processesGauge, float64(s.Processes))
	byEngine := make(map[string]uint64)
	for _, name := range s.Engines {
		byEngine[name] = 0
	}
	for _, c := range s.Connections {
		byEngine[c.Engine]++
	}
	p.Each(connectionsGauge, byEngine)
	p.Put(memoryGauge, float64(s.MemoryBytes))
	p.Put(limitGauge, float64(s.MemoryLimit))
	p.Put(madeCounter, float64(s.Made))
	p.Each(refusedCounter, s.Refused)
	p.Put(grownCounter, float64(s.Grown))
	p.Put(sentCounter, float64(s.SentBytes))
	if err := p.Process(started); err != nil {
		return err
	}
	return p.Write(w)
}
