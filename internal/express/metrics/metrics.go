// Package metrics writes what express counts for Prometheus. docs/metrics.md
// lists the names; a test holds it to this package.
package metrics

import (
	"io"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/metrics"
)

// Snapshot is what the daemon has counted at one moment.
type Snapshot struct {
	Status api.Status
	// Started is when the daemon did.
	Started time.Time
	// ConentriesLimit is the maximum number of Conentries.
	ConentriesLimit int
	// Composed counts Conentries; Refused counts refused candidates, by
	// reason.
	Composed uint64
	Refused  map[string]uint64
	// Composing is the times from candidate to Conentry, RulesUnknown those from a change
	// of rules to rules that are known.
	Composing, RulesUnknown metrics.Times
	// Changes counts changes that made decisions stale, by kind.
	Changes map[string]uint64
	// Lost counts how often the kernel dropped messages that were not read in
	// time, by their source.
	Lost map[string]uint64
	// Heartbeats counts heartbeats written.
	Heartbeats uint64
}

// Write writes a snapshot, and how the calling process does.
func Write(w io.Writer, s Snapshot) error {
	p := page{make(metrics.Page)}
	p.daemon(s)
	p.totals(s.Status)
	for _, c := range s.Status.Containers {
		p.container(c)
	}
	if err := p.Process(s.Started); err != nil {
		return err
	}
	return p.Write(w)
}

// page is what of a snapshot goes onto a page.
type page struct{ metrics.Page }
