package top

import (
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/scon-project/scon/internal/cli"
)

// column is a column of a table. On a narrow terminal, the columns with the highest number
// go, and flexible columns shrink.
type column[T any] struct {
	title string
	right bool // aligned
	least int  // width that a flexible column keeps at least; 0: it does not shrink
	drop  int  // which goes first, the highest; 0: it stays
	text  func(*T) string
}

// gap between columns.
const gap = 2

// grid lays rows out in columns within a width, each line without the trailing spaces.
// The first line is the header.
func grid[T any](columns []column[T], rows []T, width int) []string {
	cells := make([][]string, len(columns))
	natural := make([]int, len(columns))
	for i, c := range columns {
		cells[i] = make([]string, 0, len(rows)+1)
		cells[i] = append(cells[i], c.title)
		for j := range rows {
			cells[i] = append(cells[i], cli.Printable(c.text(&rows[j])))
		}
		for _, cell := range cells[i] {
			natural[i] = max(natural[i], ansi.StringWidth(cell))
		}
	}
	widths := fit(columns, natural, width)
	lines := make([]string, len(rows)+1)
	for j := range lines {
		var b strings.Builder
		for i, c := range columns {
			if widths[i] == 0 {
				continue
			}
			text := ansi.Truncate(cells[i][j], widths[i], "…")
			pad := strings.Repeat(" ", widths[i]-ansi.StringWidth(text))
			if c.right {
				text, pad = pad, text
			}
			b.WriteString(text + pad + strings.Repeat(" ", gap))
		}
		lines[j] = strings.TrimRight(ansi.Truncate(b.String(), width, ""), " ")
	}
	return lines
}

// fit sets the columns' widths within a width, 0 for those that do not fit. A flexible
// column may take up to twice its least width before another column goes for it.
func fit[T any](columns []column[T], natural []int, width int) []int {
	widths := make([]int, len(columns))
	room := width + gap
	for i, c := range columns {
		if widths[i] = natural[i]; c.least > 0 {
			widths[i] = min(widths[i], 2*c.least)
		}
		room -= widths[i] + gap
	}
	for room < 0 {
		last := -1
		for i, c := range columns {
			if widths[i] > 0 && c.drop > 0 && (last < 0 || c.drop > columns[last].drop) {
				last = i
			}
		}
		if last < 0 {
			break
		}
		room += widths[last] + gap
		widths[last] = 0
	}
	for i, c := range columns {
		switch {
		case widths[i] == 0 || c.least == 0:
		case room < 0:
			cut := max(0, min(-room, widths[i]-c.least))
			widths[i] -= cut
			room += cut
		default:
			more := min(room, natural[i]-widths[i])
			widths[i] += more
			room -= more
		}
	}
	return widths
}
