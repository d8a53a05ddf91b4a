package redact

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write words.txt")

// unknown is how many of SCON's own words may be missing in words.txt, in percent: reports
// show them as names. A new message does not have to touch the list.
const unknown = 4

// SCON's own messages are known: the words of all strings in the program.
func TestWords(t *testing.T) {
	all := ownWords(t)
	if *update {
		text := "# Words of SCON's strings: go test ./internal/redact -run TestWords -update\n" + strings.Join(all, "\n") + "\n"
		if err := os.WriteFile("words.txt", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	var missing []string
	for _, w := range all {
		if !words()[w] {
			missing = append(missing, w)
		}
	}
	t.Logf("%d of %d words are missing: %q", len(missing), len(all), missing)
	if 100*len(missing) > unknown*len(all) {
		t.Errorf("run 'go test ./internal/redact -run TestWords -update'")
	}
}

// ownWords returns the words of all strings in the program that are not numbers or
// addresses, and the names of functions, types and files, which are in the trace of a panic.
func ownWords(t *testing.T) []string {
	out, err := exec.Command("go", "list", "-deps", "-f",
		`{{if .Module}}{{if .Module.Main}}{{$dir := .Dir}}{{range .GoFiles}}{{$dir}}/{{.}}{{"\n"}}{{end}}{{end}}{{end}}`, "../../cmd/scon").Output()
	if err != nil {
		t.Fatal(err)
	}
	set := make(map[string]bool)
	for _, file := range strings.Fields(string(out)) {
		if filepath.Base(filepath.Dir(file)) == "redact" {
			continue
		}
		addWords(set, filepath.Base(file))
		if _, below, ok := strings.Cut(file, "/internal/"); ok {
			addWords(set, filepath.Dir(below))
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			if _, ok := n.(*ast.ImportSpec); ok {
				return false
			}
			switch n := n.(type) {
			case *ast.FuncDecl:
				addWords(set, n.Name.Name)
			case *ast.TypeSpec:
				addWords(set, n.Name.Name)
			case *ast.BasicLit:
				if s, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
					addWords(set, s)
				}
			}
			return true
		})
	}
	var all []string
	for w := range set {
		all = append(all, w)
	}
	slices.Sort(all)
	return all
}

func addWords(set map[string]bool, s string) {
	for len(s) > 0 {
		n := wordLen(s)
		if n == 0 {
			s = s[1:]
			continue
		}
		w := strings.ToLower(strings.Trim(s[:n], ".-"))
		s = s[n:]
		_, err := netip.ParseAddr(w)
		if w != "" && err != nil && len(w) < 40 && !numeric.MatchString(w) && !hexID.MatchString(w) {
			set[w] = true
		}
	}
}
