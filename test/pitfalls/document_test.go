package pitfalls

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// root is the root of the module.
const root = "../.."

var (
	namedTest = regexp.MustCompile("`([a-z/]+)\\.(Test\\w+)`")
	item      = regexp.MustCompile(`(?m)^(\d+)\. .*(?:\n .*)*`)
)

// pitfalls.md lists each case with a test, or with the reason why it cannot occur.
// The tests that it names exist, and it names all tests of this folder.
func TestListIsComplete(t *testing.T) {
	text, err := os.ReadFile("pitfalls.md")
	if err != nil {
		t.Fatal(err)
	}
	named := make(map[string]bool)
	for _, m := range namedTest.FindAllStringSubmatch(string(text), -1) {
		if !testsOf(t, m[1])[m[2]] {
			t.Errorf("there is no %s in %s", m[2], m[1])
		}
		named[m[2]] = true
	}
	const cases = 24
	seen := make(map[int]bool)
	for _, m := range item.FindAllStringSubmatch(string(text), -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		if !namedTest.MatchString(m[0]) && !strings.Contains(m[0], "cannot occur") {
			t.Errorf("case %d has no test and no reason why it cannot occur", n)
		}
		seen[n] = true
	}
	for n := 1; n <= cases; n++ {
		if !seen[n] {
			t.Errorf("case %d is not in the list", n)
		}
	}
	for name := range testsOf(t, "test/pitfalls") {
		if !named[name] {
			t.Errorf("%s is not in the list", name)
		}
	}
}

// testsOf returns the names of a folder's tests.
func testsOf(t *testing.T, folder string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	tests := make(map[string]bool)
	for _, path := range files {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && strings.HasPrefix(fn.Name.Name, "Test") && fn.Name.Name != "TestMain" {
				tests[fn.Name.Name] = true
			}
		}
	}
	return tests
}
