// Package metrics writes what the daemon counts for Prometheus, in its text
// format. docs/metrics.md lists the names; a test holds it to this package.
//
// The format is written by hand: Prometheus' own library takes 2 MB of memory,
// a fifteenth of what the daemon may. The tests read it back with that library.
package metrics

import (
	"io"
	"time"

	"github.com/scon-project/scon/internal/api"
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
	// Changes counts changes that made decisions stale, by kind.
	Changes map[string]uint64
	// Lost counts how often the kernel dropped messages that were not read in
	// time, by their source.
	Lost map[string]uint64
	// Pipe is the broker's state, nil without one.
	Pipe *api.Pipe
	// Heartbeats counts heartbeats written.
	Heartbeats uint64
}

// Write writes a snapshot, and how the calling process does.
func Write(w io.Writer, s Snapshot) error {
	p := make(page)
	p.daemon(s)
	p.totals(s.Status)
	for _, c := range s.Status.Containers {
		p.container(c)
	}
	if s.Pipe != nil {
		p.pipe(*s.Pipe)
	}
	if err := p.process(s.Started); err != nil {
		return err
	}
	return p.write(w)
}
