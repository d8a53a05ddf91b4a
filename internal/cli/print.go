package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
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
	columns []Column[[]string]
	rows    [][]string
}

// NewTable returns a table without rows. A header that begins with '>' heads a
// column of numbers, which is aligned to the right.
func NewTable(header ...string) *Table {
	t := &Table{}
	for i, h := range header {
		title, right := strings.CutPrefix(h, ">")
		t.columns = append(t.columns, Column[[]string]{Title: title, Right: right, Text: func(row *[]string) string { return (*row)[i] }})
	}
	return t
}

// Add appends a row.
func (t *Table) Add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = fmt.Sprint(c)
	}
	t.rows = append(t.rows, row)
}

// Print writes the table.
func (t *Table) Print(w io.Writer) error { return PrintGrid(w, t.columns, t.rows, NoWidth) }

// Bar draws part of part+rest.
func Bar(part, rest float64, width int) string {
	full := 0
	if part > 0 {
		full = int(float64(width) * part / (part + rest))
	}
	return strings.Repeat("█", full) + strings.Repeat("░", width-full)
}

// OrDash fills an empty cell.
func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
