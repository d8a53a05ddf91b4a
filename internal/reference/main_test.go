package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// What is committed is what the sources say.
func TestUpToDate(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"internal", "cmd"} {
		real, err := filepath.Abs(filepath.Join("../..", dir))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(real, filepath.Join(root, dir)); err != nil {
			t.Fatal(err)
		}
	}
	committed := make(map[string]string)
	for _, file := range []string{"packaging/scon.yaml", "docs/json.md"} {
		text, err := os.ReadFile(filepath.Join("../..", file))
		if err != nil {
			t.Fatal(err)
		}
		committed[file] = string(text)
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, file), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := write(root); err != nil {
		t.Fatal(err)
	}
	for file, want := range committed {
		if text, err := os.ReadFile(filepath.Join(root, file)); err != nil || string(text) != want {
			t.Errorf("%s is outdated, %v: run \"make generate\"", file, err)
		}
	}
}

const source = `package p

// Doc is a document.
type Doc struct {
	Embedded
	// Parts are its parts.
	Parts []Part ` + "`json:\"parts\"`" + `
	By    map[string]Part ` + "`json:\"by\"`" + ` // parts, too
	Pair  *[2]uint64 ` + "`json:\"pair,omitempty\"`" + ` // a | pair
	hidden int
}

type Embedded struct {
	At time.Time ` + "`json:\"at\"`" + ` // its time
}

type Part struct {
	Why string ` + "`json:\"why,omitempty\"`" + ` // the reason
}
`

func TestLists(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "p.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	page := "a\n<!-- fields of p: Doc Part -->\nold\n<!-- end -->\nb\n"
	got, err := fill(page, func(string) (map[string][]field, error) { return structs(dir) })
	want := "a\n<!-- fields of p: Doc Part -->\n\n- `at`: its time\n- `parts:objects`: its parts\n- `by:objects by name`: parts, too\n" +
		"- `pair?:pair of numbers`: a | pair\n- `parts[].why?`: the reason\n\n<!-- end -->\nb\n"
	if err != nil || got != want {
		t.Errorf("%v, got\n%s\nwant\n%s", err, got, want)
	}
	if again, err := fill(got, func(string) (map[string][]field, error) { return structs(dir) }); err != nil || again != got {
		t.Errorf("a second time: %v\n%s", err, again)
	}
	if _, err := fill(strings.Replace(page, "Part", "Gone", 1), func(string) (map[string][]field, error) { return structs(dir) }); err == nil {
		t.Error("a type that is not there is no error")
	}
}

func TestWrap(t *testing.T) {
	for text, want := range map[string]string{
		"- a b":                "- a b\n",
		"- one two three four": "- one two\n  three four\n",
		"- `a b c` d":          "- `a b c` d\n",
		"- one `two three`":    "- one\n  `two three`\n",
		"- äöüß two`x y`, z":   "- äöüß\n  two`x y`,\n  z\n",
	} {
		if got := wrap(text, 12); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestValueText(t *testing.T) {
	for _, c := range []struct {
		value any
		want  string
	}{
		{time.Minute, "1m"}, {45 * time.Second, "45s"}, {10 * time.Millisecond, "10ms"}, {90 * time.Second, "1m30s"},
		{int64(128 << 20), "128MiB"}, {"", `""`}, {"/a", "/a"}, {true, "true"}, {[]string{"a", "b"}, "[a, b]"}, {[]string(nil), "[]"},
	} {
		if got, err := valueText(reflect.ValueOf(c.value)); err != nil || got != c.want {
			t.Errorf("%v: %q, %v, want %q", c.value, got, err, c.want)
		}
	}
	if _, err := valueText(reflect.ValueOf(1.5)); err == nil {
		t.Error("a float has a form")
	}
	if _, _, err := find(nil, reflect.ValueOf(struct{}{}), "admit"); err == nil {
		t.Error("a key without a field is no error")
	}
}

// A field without a comment is an error: its row would have no words.
func TestFieldWithoutComment(t *testing.T) {
	dir := t.TempDir()
	text := "package p\n\ntype Doc struct {\n\tBare int `json:\"bare\"`\n}\n"
	if err := os.WriteFile(filepath.Join(dir, "p.go"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := fill("<!-- fields of p: Doc -->\n<!-- end -->\n", func(string) (map[string][]field, error) { return structs(dir) })
	if err == nil || !strings.Contains(err.Error(), "Doc.Bare has no comment") {
		t.Error(err)
	}
}
