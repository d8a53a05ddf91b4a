package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/numbers"
)

// printJSON prints a document of the API.
func (t *tool) printJSON(document any) error { return cli.PrintJSON(t.stdout, document) }

// share draws part of part+rest as a bar with its percentage, "-" if both are 0.
func share(part, rest uint64) string {
	text := numbers.Share(part, rest)
	if text == "-" {
		return text
	}
	return cli.Bar(float64(part), float64(rest), 10) + " " + text
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
