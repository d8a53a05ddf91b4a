// Package hostile runs the tests of all attacks that attacks.md lists, and prints what
// came of each. "make test-hostile" runs it; without it, only the lists are checked.
package hostile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// document has the attacks, one an item of a list:
//
//   - What is tried: *what comes of it*. `TestX`, `TestY`
const document = "test/hostile/attacks.md"

// attack is an item.
type attack struct {
	what, outcome string
	tests         []string // TestX, TestX/sub or FuzzX
}

var (
	item     = regexp.MustCompile(`^(.+): \*(.+)\*\. (.+)$`)
	testName = regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9]+)[^`]*`")
)

// attacks reads the document.
func attacks(t *testing.T) (all []attack) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, document))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range strings.Split("\n"+string(content), "\n- ")[1:] {
		text, _, _ = strings.Cut(text, "\n\n")
		m := item.FindStringSubmatch(strings.Join(strings.Fields(text), " "))
		if m == nil {
			t.Errorf("%s: no attack: %q", document, text)
			continue
		}
		a := attack{what: m[1], outcome: m[2]}
		for _, name := range testName.FindAllStringSubmatch(m[3], -1) {
			a.tests = append(a.tests, name[1])
		}
		if len(a.tests) == 0 {
			t.Errorf("%s: no test of %q", document, a.what)
		}
		all = append(all, a)
	}
	if len(all) == 0 {
		t.Errorf("%s lists no attacks", document)
	}
	return all
}

var testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Za-z0-9]+)\(`)

// packages finds the packages of each test.
func packages(t *testing.T) map[string][]string {
	t.Helper()
	of := make(map[string][]string)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		for _, m := range testFunction.FindAllSubmatch(content, -1) {
			of[string(m[1])] = append(of[string(m[1])], dir)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return of
}

// result of a test, what it has printed, and the bounds in that.
type result struct {
	action  string
	printed strings.Builder
	bounds  []string
}

// TestAttacks holds that each attack of the document has a test that exists, and with
// SCON_HOSTILE runs them.
func TestAttacks(t *testing.T) {
	of := packages(t)
	all := attacks(t)
	wanted := make(map[string][]string) // tests by package
	for _, a := range all {
		for _, name := range a.tests {
			if len(of[name]) == 0 {
				t.Errorf("%s names %s, which does not exist", document, name)
			}
			for _, dir := range of[name] {
				if !slices.Contains(wanted[dir], name) {
					wanted[dir] = append(wanted[dir], name)
				}
			}
		}
	}
	if os.Getenv("SCON_HOSTILE") == "" || t.Failed() {
		return
	}
	results := make(map[string]*result)
	for dir, names := range wanted {
		run(t, dir, names, results)
	}
	report(t, all, results)
}

// run runs tests of a package.
func run(t *testing.T, dir string, names []string, results map[string]*result) {
	t.Helper()
	cmd := exec.Command("go", "test", "-vet=off", "-count=1", "-json", "-timeout", "20m", "-run", "^("+strings.Join(names, "|")+")$", ".")
	cmd.Dir = filepath.Join(root, dir)
	cmd.Stderr = os.Stderr
	out, _ := cmd.Output() // its result is in the output
	for line := range bytes.Lines(out) {
		var event struct{ Action, Test, Output string }
		if json.Unmarshal(line, &event) != nil || event.Test == "" {
			continue
		}
		name, _, _ := strings.Cut(event.Test, "/")
		r := results[name]
		if r == nil {
			r = &result{}
			results[name] = r
		}
		r.printed.WriteString(event.Output)
		if _, bound, ok := strings.Cut(event.Output, "bound: "); ok {
			r.bounds = append(r.bounds, strings.TrimSpace(bound))
		}
		if event.Test == name && r.action != "fail" && slices.Contains([]string{"pass", "fail", "skip"}, event.Action) {
			r.action = event.Action
		}
	}
}

// report prints the table.
func report(t *testing.T, all []attack, results map[string]*result) {
	t.Helper()
	fmt.Println("\n| attack | what came of it | test |\n| --- | --- | --- |")
	var bounds []string
	for _, a := range all {
		var tests []string
		for _, name := range a.tests {
			r := results[name]
			if r == nil {
				r = &result{action: "not run"}
			}
			if r.action != "pass" && r.action != "skip" {
				t.Errorf("%s: %s: %s\n%s", a.what, name, r.action, &r.printed)
			}
			tests = append(tests, name+": "+r.action)
			for _, b := range r.bounds {
				if b = name + ": " + b; !slices.Contains(bounds, b) {
					bounds = append(bounds, b)
				}
			}
		}
		fmt.Printf("| %s | %s | %s |\n", a.what, a.outcome, strings.Join(tests, ", "))
	}
	fmt.Println("\nBounds:")
	for _, b := range bounds {
		fmt.Println("-", b)
	}
}
