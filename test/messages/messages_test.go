// Package messages tests the messages of errors that a user can cause.
package messages

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// packages are those whose errors reach users: of the command line, of the settings, and of
// a service's start. What the machine refuses is wrapped by them with what was attempted.
var packages = []string{
	"./cmd/scon", "./internal/cli", "./internal/config", "./internal/api", "./internal/state", "./internal/service", "./internal/doctor",
	"./internal/host/netns", "./internal/express", "./internal/express/discover", "./internal/pin", "./internal/startup/control", "./internal/pipe/control",
}

// remedy is how a message says what to do.
var remedy = regexp.MustCompile(`(?i)\b(want|run|use|set|see|give|install|omit|stop|end|remove|change|make|name|need|needs|needed|change|lists them|stops it|starts another|start)\b|'(sudo )?scon |'systemctl |'kill|"ip `)

// message is the text of an error in the sources.
type message struct{ text, place string }

// cause matches a message that ends with another one, which says the rest.
var cause = regexp.MustCompile(`(^|: |…)…$|^$|^… \(log: …\)$`)

// messages returns the texts of errors that wrap no other one: those have to say what, where
// and what to do by themselves. To those about the command line (Usagef) its help is added.
func messages(t *testing.T) (all []message) {
	for _, file := range files(t) {
		set := token.NewFileSet()
		tree, err := parser.ParseFile(set, file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if text, ok := errorText(call); ok && !strings.Contains(text, "%w") && !cause.MatchString(shape(text)) {
				all = append(all, message{shape(text), set.Position(call.Pos()).String()})
			}
			return true
		})
	}
	return all
}

func files(t *testing.T) []string {
	cmd := exec.Command("go", append([]string{"list", "-f", `{{$dir := .Dir}}{{range .GoFiles}}{{$dir}}/{{.}}{{"\n"}}{{end}}`}, packages...)...)
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

// errorText returns the format of a call that makes an error.
func errorText(call *ast.CallExpr) (text string, ok bool) {
	var of, name string
	switch f := call.Fun.(type) {
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			of, name = x.Name, f.Sel.Name
		}
	case *ast.Ident:
		name = f.Name
	}
	if !slices.Contains([]string{"errors.New", "fmt.Errorf", ".ofElement"}, of+"."+name) {
		return "", false
	}
	for _, arg := range call.Args {
		if lit, ok := arg.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			text, err := strconv.Unquote(lit.Value)
			return text, err == nil
		}
	}
	return "", false
}

var verb = regexp.MustCompile(`"?%(\[\d+\])?[#+]?[a-z]"?`)

// shape is a format with "…" for each value.
func shape(format string) string { return verb.ReplaceAllString(format, "…") }

// documented are the messages that docs/errors.md explains.
func documented(t *testing.T) (all []string) {
	text, err := os.ReadFile(filepath.Join("../..", "docs/errors.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		all = append(all, row[1])
	}
	return all
}

// Each message says what to do, or docs/errors.md does.
func TestMessages(t *testing.T) {
	known := documented(t)
	all := messages(t)
	if len(all) < 50 {
		t.Fatalf("%d messages found", len(all))
	}
	for _, m := range all {
		if !remedy.MatchString(m.text) && !slices.Contains(known, m.text) {
			t.Errorf("%s: %q says not what to do, and docs/errors.md neither", m.place, m.text)
		}
	}
}

// docs/errors.md explains messages that there are.
func TestDocumented(t *testing.T) {
	var sources strings.Builder
	for _, file := range files(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sources.Write(text)
	}
	literals := regexp.MustCompile("\"(?:\\\\.|[^\"\\\\\n])*\"|`[^`]*`").FindAllString(sources.String(), -1)
	have := make(map[string]bool)
	for _, l := range literals {
		if text, err := strconv.Unquote(l); err == nil {
			have[shape(text)] = true
		}
	}
	for _, text := range documented(t) {
		if !have[text] {
			t.Errorf("docs/errors.md explains %q, which no error says", text)
		}
	}
}
