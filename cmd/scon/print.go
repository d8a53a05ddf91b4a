package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

func addJSONFlag(cmd *cobra.Command, asJSON *bool) {
	cmd.Flags().BoolVar(asJSON, "json", false, "print the JSON document")
}

// printJSON prints a document of package api as it came.
func (t *tool) printJSON(document any) error {
	enc := json.NewEncoder(t.stdout)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(document)
}

// table is text in aligned columns. A header that begins with '>' stands over
// a column of numbers, which is aligned to the right.
type table struct {
	header []string
	rows   [][]string
}

func newTable(header ...string) *table { return &table{header: header} }

func (t *table) add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = printable(fmt.Sprint(c))
	}
	t.rows = append(t.rows, row)
}

func (t *table) print(w io.Writer) error {
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

// printable replaces what a terminal would obey: names come from elsewhere.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// orDash fills a cell that would be empty.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// share draws part of part+rest as a bar of ten and a percentage, "-" when
// there is nothing to divide.
func share(part, rest uint64) string {
	all := float64(part) + float64(rest)
	if all == 0 {
		return "-"
	}
	full := int(10 * float64(part) / all)
	return fmt.Sprintf("%s%s %3d%%", strings.Repeat("█", full), strings.Repeat("░", 10-full), int(100*float64(part)/all))
}

// bytesText is a size for people: 999 B, 1.2 kB, 3.4 GB.
func bytesText(n uint64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	f := float64(n)
	for _, unit := range "kMGTP" {
		if f /= 1000; f < 999.95 {
			return fmt.Sprintf("%.1f %cB", f, unit)
		}
	}
	return fmt.Sprintf("%.1f EB", f/1000)
}

// millis is a duration of the API for people, to three digits or so.
func millis(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case d >= time.Minute:
		d = d.Truncate(time.Second)
	case d >= 10*time.Second:
		d = d.Truncate(100 * time.Millisecond)
	}
	return d.String()
}

// mostFirst prints counters as "a 12, b 3", the greatest first.
func mostFirst(counts map[string]uint64) string {
	var names []string
	for name, n := range counts {
		if n > 0 {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		if counts[a] != counts[b] {
			if counts[a] > counts[b] {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %d", name, counts[name])
	}
	return strings.Join(names, ", ")
}
