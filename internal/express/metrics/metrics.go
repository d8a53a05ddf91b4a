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

// Snapshot is what the daemon counts at one moment.
type Snapshot struct {
	Status api.Status
	// Started is when the daemon did.
	Started time.Time
	// ConentriesLimit is the most Conentries that there may be.
	ConentriesLimit int
	// Composed counts Conentries, Refused candidates by why they became none.
	Composed uint64
	Refused  map[string]uint64
	// Changes counts what made decisions stale, by its kind.
	Changes map[string]uint64
	// Lost counts how often the kernel had more to tell than was read in time,
	// by what it tells of.
	Lost map[string]uint64
	// Pipe is the broker's state, nil without one.
	Pipe *api.Pipe
	// Heartbeats counts signs of life to the programs.
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
