package express

import (
	"fmt"
	"io"
	"maps"
	"net"
	"sync/atomic"

	"github.com/scon-project/scon/internal/express/metrics"
	"github.com/scon-project/scon/internal/host/changes"
)

// counts are for metrics, since the daemon's start. The loop counts, but for
// changes.
type counts struct {
	composed uint64 // Conentries
	beats    uint64
	overruns uint64                             // conntrack's messages were lost
	changes  [changes.Overrun + 1]atomic.Uint64 // by their kind, counted where they are heard of
}

// snapshot is what metrics are made of.
func (d *Daemon) snapshot() (metrics.Snapshot, error) {
	status, err := d.status()
	if err != nil {
		return metrics.Snapshot{}, err
	}
	s := metrics.Snapshot{
		Status:          status,
		Started:         d.started,
		ConentriesLimit: d.opts.Config.Connections,
		Composed:        d.counts.composed,
		Refused:         maps.Clone(d.refused),
		Changes:         make(map[string]uint64),
		Lost:            map[string]uint64{"conntrack": d.counts.overruns},
		Heartbeats:      d.counts.beats,
	}
	if d.broker != nil {
		s.Pipe = new(d.broker.Status())
	}
	for kind := range d.counts.changes {
		n := d.counts.changes[kind].Load()
		if kind := changes.Kind(kind); kind == changes.Overrun {
			s.Lost["changes"] = n
		} else {
			s.Changes[kind.String()] = n
		}
	}
	return s, nil
}

// Metrics writes them in Prometheus' text format.
func (b backend) Metrics(w io.Writer) error {
	s, err := inLoop(b, (*Daemon).snapshot)
	if err != nil {
		return err
	}
	return metrics.Write(w, s)
}

// listenMetrics opens the metrics' own address; "" is none.
func listenMetrics(addr string) (net.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("offer metrics: %w", err)
	}
	return l, nil
}
