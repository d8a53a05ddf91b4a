// Package pages compares the laboratory's documents with the results that they show.
package pages

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// WantShown fails a test if a document of lab/docs (its name without ".md") does not show what
// a command prints: lines of its first table, the heading among them, and the text below its
// tables, which the document may break elsewhere.
func WantShown(t *testing.T, document, command, printed string) {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	text, err := os.ReadFile(filepath.Join(filepath.Dir(file), "../../docs", document+".md"))
	if err != nil {
		t.Fatal(err)
	}
	if !shows(string(text), printed) {
		t.Errorf("lab/docs/%s.md does not show lines of what %q prints:\n%s", document, command, printed)
	}
}

func shows(document, printed string) bool {
	lines := strings.Split(strings.TrimSpace(printed), "\n")
	_, below, _ := strings.Cut(printed[strings.LastIndex(printed, "\n|")+1:], "\n\n")
	paragraphs := strings.Split(document, "\n\n")
	for i, p := range paragraphs[:len(paragraphs)-1] {
		rows := strings.Split(strings.TrimSpace(p), "\n")
		strange := func(row string) bool { return !slices.Contains(lines, row) }
		if len(rows) > 2 && rows[0] == lines[0] && !slices.ContainsFunc(rows, strange) && words(paragraphs[i+1]) == words(below) {
			return true
		}
	}
	return false
}

// words is a text with single spaces.
func words(text string) string { return strings.Join(strings.Fields(text), " ") }
