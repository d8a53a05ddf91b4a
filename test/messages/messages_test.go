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

	"golang.org/x/sys/unix"
)

// packages are those whose errors reach users: of the command line, of the settings, and of
// a service's start. What the machine refuses is wrapped by them with what was attempted.
var packages = []string{
	"./cmd/scon", "./internal/cli", "./internal/web/documents", "./internal/config", "./internal/api", "./internal/state", "./internal/service", "./internal/doctor",
	"./internal/host/netns", "./internal/express", "./internal/express/discover", "./internal/pin", "./internal/startup/control", "./internal/pipe/control",
}

// remedy is how a message says what to do.
var remedy = regexp.MustCompile(`(?i)\b(want|run|use|set|see|give|install|omit|stop|end|remove|change|make|name|need|needs|needed|change|lists them|stops it|starts another|start)\b|'(sudo )?scon |'systemctl |'kill|"ip `)

// message is the text of an error in the sources.
type message struct{ text, place string }

// cause matches a message that ends with another one, which says the rest.
var cause = regexp.MustCompile(`(^|: |…)…$|^$|^… \(log: …\)$`)

// messages returns the texts of errors. alone are those that wrap no other one: they have to
// say what, where and what to do by themselves. To those about the command line (Usagef) its
// help is added.
func messages(t *testing.T) (alone, wrapping []message) {
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
			text, ok := errorText(call)
			switch m := (message{shape(text), set.Position(call.Pos()).String()}); {
			case !ok:
			case strings.Contains(text, "%w") || cause.MatchString(m.text):
				wrapping = append(wrapping, m)
			default:
				alone = append(alone, m)
			}
			return true
		})
	}
	return alone, wrapping
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
	for _, item := range regexp.MustCompile("(?m)^- `([^`]+)`(?::| →)").FindAllStringSubmatch(string(text), -1) {
		all = append(all, item[1])
	}
	return all
}

// Each message says what to do, or docs/errors.md does.
func TestMessages(t *testing.T) {
	known := documented(t)
	all, _ := messages(t)
	if len(all) < 50 {
		t.Fatalf("%d messages found", len(all))
	}
	for _, m := range all {
		if !remedy.MatchString(m.text) && !slices.Contains(known, m.text) {
			t.Errorf("%s: %q says not what to do, and docs/errors.md neither", m.place, m.text)
		}
	}
}

// attempt matches what a message says around its cause: what was attempted, and with what.
var attempt = regexp.MustCompile(`^[A-Za-z…]+ \S.*…`)

// complete are the messages that add to a cause which says what was attempted.
var complete = map[string]string{
	"":                               "ErrReported: it has been printed",
	"1:1: …":                         "the parser's words, after the file",
	"…:…":                            "the file, before a position",
	"…:…: …":                         "a position in the settings, before the key",
	"…: …":                           "what for, as 'offer metrics'; or a finding and why",
	"…: the interrupt is now of …":   "what has gone",
	"…: another device has its name": "what has gone",
}

// Each message that wraps another one says what was attempted, or what to do about it, and the words of the kernel
// that it may end with are in docs/errors.md with what to do.
func TestWrapping(t *testing.T) {
	_, all := messages(t)
	if len(all) < 150 {
		t.Fatalf("%d messages found", len(all))
	}
	for _, m := range all {
		if complete[m.text] == "" && !attempt.MatchString(m.text) && !remedy.MatchString(m.text) {
			t.Errorf("%s: %q says neither what was attempted nor what to do", m.place, m.text)
		}
	}
	known := documented(t)
	for _, errno := range kernelWords {
		if !slices.Contains(known, errno.Error()) {
			t.Errorf("docs/errors.md says not what to do about %q", errno)
		}
	}
}

// kernelWords are what calls of the packages end with, as users have seen it.
var kernelWords = []unix.Errno{
	unix.EPERM, unix.EACCES, unix.ENOENT, unix.EEXIST, unix.EBUSY, unix.ENODEV, unix.ENOSPC, unix.ENOMEM, unix.EMFILE, unix.EROFS,
	unix.EADDRINUSE, unix.EADDRNOTAVAIL, unix.ECONNREFUSED, unix.EOPNOTSUPP, unix.EINVAL,
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
	for _, errno := range kernelWords {
		have[errno.Error()] = true
	}
	for _, text := range documented(t) {
		if !have[text] {
			t.Errorf("docs/errors.md explains %q, which no error says", text)
		}
	}
}
