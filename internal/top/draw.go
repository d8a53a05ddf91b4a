package top

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/live"
	"github.com/scon-project/scon/internal/plain"
)

// Lines around the table: the title, the summary, the names of the tables, the table's
// header, and the keys.
const around = 1 + 3 + 1 + 1 + 1

// room is how many rows of the table the screen has.
func (m *Model) room() int { return max(1, m.height-around) }

// lines are those of the screen. What has a color has a sign, too: a terminal may have none.
func (m *Model) lines() []string {
	lines := []string{m.cut(m.title())}
	if m.last.At.IsZero() {
		lines = append(lines, "", m.cut(m.waiting()))
		return append(m.fill(lines), m.cut("q quit"))
	}
	for _, l := range summary(&m.base, m.width) {
		lines = append(lines, m.cut(l))
	}
	if m.page != nil {
		lines = append(lines, cli.Paint(cli.Head, m.cut(plain.Text(m.page.title))))
		for _, l := range m.page.lines[min(m.page.first, len(m.page.lines)):] {
			lines = append(lines, m.cut(l)) // the terminal may have become narrower
		}
		return append(m.fill(lines), m.cut("esc back  up, down scroll  q quit"))
	}
	lines = append(lines, m.cut(m.tabs()))
	return append(m.fill(append(lines, m.tableLines()...)), m.cut(m.bottom()))
}

func (m *Model) cut(line string) string { return cli.Cut(line, m.width, "…") }

// fill leaves the last line of the screen to the keys.
func (m *Model) fill(lines []string) []string {
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	return lines[:max(0, m.height-1)]
}

func (m *Model) title() string {
	title := cli.Paint(cli.Head, "scon top")
	if !m.last.At.IsZero() {
		title += "  " + m.base.At.Format("15:04:05") + fmt.Sprintf("  over %.1f s", m.base.Seconds)
	}
	if m.frozen {
		title += "  " + cli.Paint(cli.Warn, "FROZEN")
	}
	if m.base.Restarted {
		title += "  the daemon has been restarted"
	}
	if m.err != nil && !m.last.At.IsZero() {
		title += "  " + cli.Paint(cli.Bad, "NO ANSWER: "+plain.Text(m.err.Error()))
	}
	return title
}

// waiting is what the screen has before the first snapshot.
func (m *Model) waiting() string {
	if m.err != nil {
		return plain.Text(m.err.Error())
	}
	return "asking the daemon ..."
}

// tabs names the tables with their rows, and how the one that is shown is sorted.
func (m *Model) tabs() string {
	counts := [tables]int{len(m.shown.Containers), len(m.shown.Connections), len(m.shown.Changes)}
	totals := [tables]int{len(m.base.Containers), len(m.base.Connections), len(m.base.Changes)}
	var b strings.Builder
	for i, name := range tableNames {
		text := fmt.Sprintf(" %s %d ", name, counts[i])
		if counts[i] != totals[i] {
			text = fmt.Sprintf(" %s %d of %d ", name, counts[i], totals[i])
		}
		if i == m.table {
			text = cli.Paint(cli.Chosen, "["+text[1:len(text)-1]+"]")
		}
		b.WriteString(text)
	}
	if m.orders() > 0 {
		by := [tables]string{live.ContainerOrders[m.order[containersTable]].Name, live.ConnectionOrders[m.order[connectionsTable]].Name}[m.table]
		b.WriteString("  by " + by)
		if m.reverse {
			b.WriteString(", reversed")
		}
	}
	return b.String()
}

// tableLines are the table's header and the rows around the cursor.
func (m *Model) tableLines() []string {
	at, room := m.cursor[m.table], m.room()
	first := &m.first[m.table]
	*first = max(0, min(*first, at, m.rows()-1))
	*first = max(*first, at-room+1)
	header, rows := m.grid(*first, min(*first+room, m.rows()))
	for *first < at && len(slices.Concat(rows[:at-*first+1]...)) > room { // rows of several lines
		*first++
		header, rows = m.grid(*first, min(*first+room, m.rows()))
	}
	all := []string{cli.Paint(cli.Head, m.cut(noMark+header))}
	for i, row := range rows {
		before := noMark
		if *first+i == at {
			before = mark
		}
		for _, line := range row {
			if *first+i == at {
				line = cli.Paint(cli.Chosen, m.cut(before+cli.Bare(line)))
			} else {
				line = m.cut(before + line)
			}
			all, before = append(all, line), noMark
		}
	}
	if m.rows() == 0 {
		all = append(all, "", m.cut(noMark+m.empty()))
	}
	return all
}

// grid lays some rows of the table out.
func (m *Model) grid(first, until int) (header string, rows [][]string) {
	width := m.width - len(mark)
	switch m.table {
	case containersTable:
		return cli.Grid(containerColumns, m.shown.Containers[first:until], width)
	case connectionsTable:
		return cli.Grid(connectionColumns, m.shown.Connections[first:until], width)
	default:
		return cli.Grid(changeColumns, m.shown.Changes[first:until], width)
	}
}

// mark stands before the selected row.
const (
	mark   = "> "
	noMark = "  "
)

// empty says why a table has no rows.
func (m *Model) empty() string {
	totals := [tables]int{len(m.base.Containers), len(m.base.Connections), 0}
	switch {
	case totals[m.table] > 0:
		return "Nothing matches the filter; esc clears it."
	case m.table == containersTable:
		return "No containers yet: a container is hooked when its port joins a bridge or a route leads to it."
	case m.table == connectionsTable:
		return "No connections: a connection becomes a candidate after its first packets."
	default:
		return "Nothing has changed since this view began."
	}
}

func (m *Model) bottom() string {
	switch {
	case m.editing && m.textWrong != "":
		return "filter: " + m.text + "_  " + plain.Text(m.textWrong)
	case m.editing:
		return "filter: " + m.text + "_  enter ends, esc clears"
	case m.text != "":
		return "filter: " + m.text + "  (esc clears)  ? keys  q quit"
	default:
		return "tab table  enter explain  s sort  / filter  space freeze  ? all keys  q quit"
	}
}

// wrap makes a page's lines of a text. It breaks them between words, and a word that is longer
// than a line.
func (m *Model) wrap(text string) (lines []string) {
	for l := range strings.Lines(text) {
		for l, more := plain.Text(strings.TrimRight(l, "\n")), true; more; more = l != "" {
			n := m.fitting(l)
			lines = append(lines, strings.TrimRight(l[:n], " "))
			l = strings.TrimLeft(l[n:], " ")
		}
	}
	return lines
}

// fitting returns how much of a text one line takes.
func (m *Model) fitting(text string) int {
	if cli.Cells(text) <= m.width {
		return len(text)
	}
	n := len(cli.Cut(text, m.width, ""))
	if space := strings.LastIndexByte(text[:n+1], ' '); strings.TrimSpace(text[:max(0, space)]) != "" {
		return space
	}
	_, least := utf8.DecodeRuneInString(text) // where not even one character fits
	return max(n, least)
}

// Write writes a view without a screen: the summary, and all rows of all tables.
func Write(w io.Writer, v live.View) error {
	live.SortContainers(v.Containers, live.ContainerOrders[0], false)
	live.SortConnections(v.Connections, live.ConnectionOrders[0], false)
	_, err := fmt.Fprintln(cli.Colored(w), strings.Join(summary(&v, cli.NoWidth), "\n"))
	return errors.Join(err, table(w, containerColumns, v.Containers), table(w, connectionColumns, v.Connections), table(w, changeColumns, v.Changes))
}

// table writes a table below an empty line, unless it is empty.
func table[T any](w io.Writer, columns []cli.Column[T], rows []T) error {
	if len(rows) == 0 {
		return nil
	}
	_, err := fmt.Fprintln(w)
	return errors.Join(err, cli.PrintGrid(w, columns, rows, cli.NoWidth))
}
