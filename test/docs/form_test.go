package docs

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// The README is read first: at most 120 lines of at most 130 columns, tables at most 120.
func TestREADMEIsShort(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	if len(lines) > 120 {
		t.Errorf("README.md has %d lines, more than 120", len(lines))
	}
	for i, line := range lines {
		most := 130
		if strings.HasPrefix(line, "|") {
			most = 120
		}
		if columns := utf8.RuneCountInString(line); columns > most {
			t.Errorf("README.md:%d has %d columns, more than %d", i+1, columns, most)
		}
	}
}

var (
	fenced  = regexp.MustCompile("(?ms)^```.*?^```$")
	code    = regexp.MustCompile("`[^`\n]+`")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors returns the names under which a document's headings are linked.
func anchors(text string) map[string]bool {
	all := make(map[string]bool)
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		title := strings.ToLower(link.ReplaceAllString(m[1], "]"))
		all[strings.ReplaceAll(dropped.ReplaceAllString(title, ""), " ", "-")] = true
	}
	return all
}

// Every link of a document leads to a file, and to a heading of it.
func TestLinksLeadSomewhere(t *testing.T) {
	for _, file := range documents(t) {
		checkLinks(t, file)
	}
}

// So does every link of the documents that packages install, among themselves.
func TestPackagedLinksLeadSomewhere(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command("scripts/package-docs.sh", dir)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n := 0
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".md" {
			checkLinks(t, path)
			n++
		}
		return err
	})
	if err != nil || n < 20 {
		t.Errorf("%d documents are installed: %v", n, err)
	}
}

func checkLinks(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	prose := code.ReplaceAllString(fenced.ReplaceAllString(string(text), ""), "")
	for _, m := range link.FindAllStringSubmatch(prose, -1) {
		path, anchor, _ := strings.Cut(m[1], "#")
		if strings.Contains(path, "://") {
			continue
		}
		to := file
		if path != "" {
			to = filepath.Join(filepath.Dir(file), path)
		}
		if _, err := os.Stat(to); err != nil {
			t.Errorf("%s: %s leads nowhere", file, m[1])
			continue
		}
		if anchor == "" {
			continue
		}
		linked, err := os.ReadFile(to)
		if err != nil {
			t.Fatal(err)
		}
		if !anchors(string(linked))[anchor] {
			t.Errorf("%s: %s leads to no heading", file, m[1])
		}
	}
}
