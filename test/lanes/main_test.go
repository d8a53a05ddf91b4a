package main

import (
	"fmt"
	"testing"
)

// Slow packages come first, as the table orders them; each package is tested once, by its module.
func TestOrder(t *testing.T) {
	const table = `
| package | seconds | its longest test, seconds |
| --- | --- | --- |
| ` + "`internal/pipe` | 259 | `TestA`, 94 |\n| `test/kernels` | 69 | none |\n| `gone` | 20 | none |\n"
	const root = "github.com/scon-project/scon/"
	got := order(slow(table), map[string][]string{
		".":    {root + "cmd/scon", root + "internal/pipe", root + "internal/pipe/bpf"},
		"test": {root + "test/kernels"},
		"lab":  {root + "lab/bench", root + "lab/test/kernels"},
	})
	want := []work{
		{".", []string{root + "internal/pipe"}},
		{"test", []string{root + "test/kernels"}},
		{".", []string{root + "cmd/scon", root + "internal/pipe/bpf"}},
		{"lab", []string{root + "lab/bench", root + "lab/test/kernels"}},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
