// Package top is the live view of "scon top" in a terminal: messages change the model, one
// after another, and the screen is drawn from it. What takes time is a command: it runs beside
// them, and returns a message.
package top

import (
	"strings"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/live"
)

// Daemon is what the view asks; *api.Client implements it.
type Daemon interface {
	live.Source
	Explain(subject string) (api.Explanation, error)
}

// Options are the settings of a view.
type Options struct {
	// Interval between two snapshots.
	Interval time.Duration
	// Filter in live.ParseFilter's form.
	Filter string
	// Explain writes an explanation as "scon explain" prints it, in lines of a width.
	Explain func(e api.Explanation, width int) string
}

// mostChanges is how many changes the view keeps.
const mostChanges = 1000

// Model is the state of the view.
type Model struct {
	daemon Daemon
	opts   Options

	last    live.Snapshot // the zero Snapshot before the first one
	latest  live.View
	changes []live.Change // newest first
	err     error         // of the last request; the view keeps what it has
	asked   time.Time     // when the last request began

	frozen bool
	base   live.View // latest, or the one that was frozen
	shown  live.View // base, filtered and sorted
	filter live.Filter

	table   int
	order   [tables]int
	reverse bool
	cursor  [tables]int
	first   [tables]int // first row on the screen

	editing   bool   // the filter
	text      string // of the filter
	textWrong string // why text is no filter

	page *page // an explanation or the help, over the table

	width, height int
}

// page is text that covers the table.
type page struct {
	title string
	lines []string
	first int
}

// New returns a view of a daemon. The error is the filter's.
func New(daemon Daemon, opts Options) (*Model, error) {
	filter, err := live.ParseFilter(opts.Filter)
	if err != nil {
		return nil, err
	}
	return &Model{daemon: daemon, opts: opts, filter: filter, text: opts.Filter, width: 80, height: 24}, nil
}

// taken is a snapshot, or why there is none.
type taken struct {
	snapshot live.Snapshot
	err      error
}

// explained is the answer to a request for an explanation.
type explained struct {
	subject     string
	explanation api.Explanation
	err         error
}

// due says that the next snapshot is due.
type due struct{}

// resized says how many columns and lines the terminal has.
type resized struct{ width, height int }

// quit ends the view.
type quit struct{}

// command returns a message, after a while.
type command func() any

// take asks for a snapshot.
func (m *Model) take() command {
	m.asked = time.Now()
	return func() any {
		s, err := live.Take(m.daemon)
		return taken{s, err}
	}
}

// update applies a message. The command is nil if nothing is to be done.
func (m *Model) update(message any) command {
	switch message := message.(type) {
	case resized:
		m.width, m.height = message.width, message.height
	case taken:
		m.accept(message)
		next := m.asked.Add(m.opts.Interval)
		return func() any {
			time.Sleep(time.Until(next))
			return due{}
		}
	case due:
		return m.take()
	case explained:
		m.explained(message)
	case pasted:
		if m.editing {
			m.edit(m.text + string(message))
		}
	case key:
		return m.press(message)
	}
	return nil
}

func (m *Model) accept(t taken) {
	if m.err = t.err; t.err != nil {
		return
	}
	m.latest = live.Between(m.last, t.snapshot)
	m.last = t.snapshot
	for _, c := range m.latest.Changes {
		m.changes = append([]live.Change{c}, m.changes...)
	}
	m.changes = m.changes[:min(len(m.changes), mostChanges)]
	if !m.frozen {
		m.show()
	}
}

// show has the screen show the latest view.
func (m *Model) show() {
	m.base = m.latest
	m.base.Changes = m.changes
	m.arrange()
}

// arrange filters and sorts what is shown. The cursor stays with its row.
func (m *Model) arrange() {
	row := m.selected()
	m.shown = m.base
	m.filter.Apply(&m.shown)
	live.SortContainers(m.shown.Containers, live.ContainerOrders[m.order[containersTable]], m.reverse)
	live.SortConnections(m.shown.Connections, live.ConnectionOrders[m.order[connectionsTable]], m.reverse)
	m.follow(row)
}

// rows is the number of rows of the table.
func (m *Model) rows() int {
	switch m.table {
	case containersTable:
		return len(m.shown.Containers)
	case connectionsTable:
		return len(m.shown.Connections)
	default:
		return len(m.shown.Changes)
	}
}

// selected identifies the row under the cursor, "" without one.
func (m *Model) selected() string {
	at := m.cursor[m.table]
	if at >= m.rows() {
		return ""
	}
	switch m.table {
	case containersTable:
		return m.shown.Containers[at].ID + " " + m.shown.Containers[at].Dev
	case connectionsTable:
		return subjectOf(&m.shown.Connections[at])
	default:
		return ""
	}
}

// follow puts the cursor on a row. If that row is gone, the cursor keeps its place.
func (m *Model) follow(row string) {
	at := &m.cursor[m.table]
	was := min(*at, max(0, m.rows()-1))
	for *at = 0; *at < m.rows(); *at++ {
		if row != "" && m.selected() == row {
			return
		}
	}
	*at = was
}

// subjectOf names a connection as "scon explain" takes it.
func subjectOf(c *live.Connection) string { return strings.ToLower(c.Proto) + ":" + c.Orig.String() }
