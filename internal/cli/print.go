package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// PrintJSON prints a document of package api.
func PrintJSON(w io.Writer, document any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(document)
}

// PrintLine prints a document of package api as one line.
func PrintLine(w io.Writer, document any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(document)
}

// Table is text in aligned columns.
type Table struct {
	header []string
	rows   [][]string
}

// NewTable returns a table without rows. A header that begins with '>' heads a
// column of numbers, which is aligned to the right.
func NewTable(header ...string) *Table { return &Table{header: header} }

// Add appends a row.
func (t *Table) Add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = Printable(fmt.Sprint(c))
	}
	t.rows = append(t.rows, row)
}

// Print writes the table.
func (t *Table) Print(w io.Writer) error {
	right := make([]bool, len(t.header))
	head := make([]string, len(t.header))
	for i, h := range t.header {
		head[i], right[i] = strings.CutPrefix(h, ">")
	}
	lines := append([][]string{head}, t.rows...)
	width := make([]int, len(head))
	for _, line := range lines {
		for i, cell := range line {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	var text strings.Builder
	for _, line := range lines {
		var b strings.Builder
		for i, cell := range line {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if right[i] {
				b.WriteString(pad + cell + "  ")
			} else {
				b.WriteString(cell + pad + "  ")
			}
		}
		text.WriteString(strings.TrimRight(b.String(), " ") + "\n")
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// Printable replaces control characters, which a terminal would obey: names
// come from containers.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// OrDash fills an empty cell.
func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
