package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/scon-project/scon/internal/cli"
)

// printJSON prints a document of the API.
func (t *tool) printJSON(document any) error { return cli.PrintJSON(t.stdout, document) }

// share draws part of part+rest as a bar of ten characters and a percentage, "-"
// if both are 0.
func share(part, rest uint64) string {
	all := float64(part) + float64(rest)
	if all == 0 {
		return "-"
	}
	full := int(10 * float64(part) / all)
	return fmt.Sprintf("%s%s %3d%%", strings.Repeat("█", full), strings.Repeat("░", 10-full), int(100*float64(part)/all))
}

// bytesText formats a number of bytes: 999 B, 1.2 kB, 3.4 GB.
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

// millis formats a duration of the API with about three digits.
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
