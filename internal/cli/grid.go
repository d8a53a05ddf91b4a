package cli

import (
	"io"
	"strings"

	"github.com/scon-project/scon/internal/plain"
)

// Column is a column of a grid. On a narrow terminal, the columns with the highest Drop
// go, and flexible columns shrink.
type Column[T any] struct {
	Title string
	Right bool // aligned
	Least int  // width that a flexible column keeps at least; 0: it does not shrink
	Drop  int  // which goes first, the highest; 0: it stays
	// Wrap continues a text in the next line, behind "->", instead of cutting it. Other
	// columns go for it only up to Least.
	Wrap bool
	Text func(*T) string
	Tone func(*T) Tone // nil: plain
}

// gap between columns.
const gap = 2

// NoWidth is a width that cuts nothing.
const NoWidth = 10000

// Grid lays rows out in columns within a width. It returns the header's line, and each
// row's: one, or several with a column that wraps. Lines have no trailing spaces.
func Grid[T any](columns []Column[T], rows []T, width int) (header string, lines [][]string) {
	texts := make([][]string, len(rows))
	sizes := make([]size, len(columns))
	for i, c := range columns {
		sizes[i].add(c.Title)
	}
	for j := range rows {
		texts[j] = make([]string, len(columns))
		for i, c := range columns {
			texts[j][i] = plain.Text(c.Text(&rows[j]))
			sizes[i].add(texts[j][i])
		}
	}
	widths := fit(columns, sizes, width)
	titles := make([]cell, len(columns))
	for i, c := range columns {
		titles[i] = cell{text: c.Title, right: c.Right, width: widths[i]}
	}
	lines = make([][]string, len(rows))
	for j := range rows {
		cells := make([]cell, len(columns))
		for i, c := range columns {
			cells[i] = cell{text: texts[j][i], right: c.Right, width: widths[i]}
			if c.Tone != nil {
				cells[i].tone = c.Tone(&rows[j])
			}
		}
		lines[j] = layOut(cells, wraps(columns), width)
	}
	return layOut(titles, -1, width)[0], lines
}

// cell of a line. One of width 0 is left out.
type cell struct {
	text  string
	right bool
	width int
	tone  Tone
}

// wraps returns the column that wraps, -1 if none does.
func wraps[T any](columns []Column[T]) int {
	for i, c := range columns {
		if c.Wrap {
			return i
		}
	}
	return -1
}

// layOut returns a row's lines. The text of the cell at wrap continues in further ones.
func layOut(cells []cell, wrap, width int) (lines []string) {
	var more []string
	if wrap >= 0 && Cells(cells[wrap].text) > cells[wrap].width {
		parts := pieces(cells[wrap].text)
		cells[wrap].text, more = parts[0], parts[1:]
	}
	var line strings.Builder
	for _, c := range cells {
		if c.width > 0 {
			line.WriteString(c.String() + strings.Repeat(" ", gap))
		}
	}
	lines = []string{trim(line.String(), width)}
	for _, part := range more {
		for i := range cells {
			cells[i].text = ""
		}
		cells[wrap].text = part
		lines = append(lines, layOut(cells, -1, width)...)
	}
	return lines
}

// trim cuts a line to a width, and its trailing spaces off.
func trim(line string, width int) string {
	return strings.TrimRight(Cut(strings.TrimRight(line, " "), width, ""), " ")
}

func (c cell) String() string {
	text := Cut(c.text, c.width, "…")
	pad := strings.Repeat(" ", c.width-Cells(text))
	if text = Paint(c.tone, text); c.right {
		return pad + text
	}
	return text + pad
}

// pieces are the parts of a text that stay in one line.
func pieces(text string) []string { return strings.SplitAfter(text, "->") }

// size is the width that a column's texts need, and that their widest piece needs.
type size struct{ natural, piece int }

func (s *size) add(text string) {
	s.natural = max(s.natural, Cells(text))
	for _, p := range pieces(text) {
		s.piece = max(s.piece, Cells(p))
	}
}

// fit sets the columns' widths within a width, 0 for those that do not fit. A flexible
// column may take up to twice its least width before another column goes for it.
func fit[T any](columns []Column[T], sizes []size, width int) []int {
	widths, least := make([]int, len(columns)), make([]int, len(columns))
	room := width + gap
	for i, c := range columns {
		switch widths[i], least[i] = sizes[i].natural, c.Least; {
		case c.Wrap:
			least[i] = sizes[i].piece
			widths[i] = min(widths[i], max(c.Least, least[i]))
		case c.Least > 0:
			widths[i] = min(widths[i], 2*c.Least)
		}
		room -= widths[i] + gap
	}
	for room < 0 {
		last := -1
		for i, c := range columns {
			if widths[i] > 0 && c.Drop > 0 && (last < 0 || c.Drop > columns[last].Drop) {
				last = i
			}
		}
		if last < 0 {
			break
		}
		room += widths[last] + gap
		widths[last] = 0
	}
	for i := range columns {
		switch {
		case widths[i] == 0 || least[i] == 0:
		case room < 0:
			cut := max(0, min(-room, widths[i]-least[i]))
			widths[i] -= cut
			room += cut
		default:
			more := min(room, sizes[i].natural-widths[i])
			widths[i] += more
			room -= more
		}
	}
	return widths
}

// PrintGrid writes a grid with its header, colored where w is a terminal.
func PrintGrid[T any](w io.Writer, columns []Column[T], rows []T, width int) error {
	header, lines := Grid(columns, rows, width)
	text := Paint(Head, header) + "\n"
	for _, row := range lines {
		text += strings.Join(row, "\n") + "\n"
	}
	_, err := io.WriteString(Colored(w), text)
	return err
}
