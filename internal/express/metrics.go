package express

import (
	"sync/atomic"

	"github.com/scon-project/scon/internal/express/metrics"
	"github.com/scon-project/scon/internal/host/changes"
	values "github.com/scon-project/scon/internal/metrics"
)

// counts are for the metrics, since the daemon's start.
type counts struct {
	overruns  uint64                             // how often conntrack's messages were lost; the loop counts
	composing values.Times                       // from candidate to Conentry; the loop counts
	changes   [changes.Overrun + 1]atomic.Uint64 // by kind; the goroutines that read changes count them
}

// snapshot returns what the metrics are made of.
func (v view) snapshot() (metrics.Snapshot, error) {
	status, err := v.status()
	if err != nil {
		return metrics.Snapshot{}, err
	}
	s := metrics.Snapshot{
		Status:          status,
		Started:         v.started,
		ConentriesLimit: v.opts.Config.Connections,
		Composed:        v.composer.Composed(),
		Composing:       v.counts.composing,
		RulesUnknown:    v.heartbeat.rulesUnknown(),
		Refused:         make(map[string]uint64),
		Changes:         make(map[string]uint64),
		Lost:            map[string]uint64{"conntrack": v.counts.overruns},
		Heartbeats:      v.heartbeat.written(),
	}
	for why, n := range v.composer.Refused() {
		s.Refused[string(why)] = n
	}
	for kind := range v.counts.changes {
		n := v.counts.changes[kind].Load()
		if kind := changes.Kind(kind); kind == changes.Overrun {
			s.Lost["changes"] = n
		} else {
			s.Changes[kind.String()] = n
		}
	}
	return s, nil
}
