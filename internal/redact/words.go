package redact

import (
	_ "embed"
	"strings"
	"sync"
)

var (
	//go:embed words.txt
	ownList string
	//go:embed tools.txt
	toolList string
)

// words are known, in lower case. A program that redacts nothing does not read them.
var words = sync.OnceValue(func() map[string]bool {
	known := make(map[string]bool)
	for line := range strings.Lines(ownList + toolList) {
		if line[0] == '#' {
			continue
		}
		for _, w := range strings.Fields(line) {
			known[w] = true
		}
	}
	return known
})
