package pipe_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What the library exports is what its header, its version script and its man
// pages have.
func TestExports(t *testing.T) {
	t.Parallel()
	const dir = "../../libsconpipe"
	read := func(name string) string {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	names := func(pattern, text string) (all []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			all = append(all, m[1])
		}
		slices.Sort(all)
		return all
	}
	want := names(`(?m)^\w[\w ]*[ *](pd_\w+)\(`, read("include/sconpipe.h"))
	if got := names(`(?m)^\t(\w+);`, read("sconpipe.map")); !slices.Equal(got, want) {
		t.Errorf("the version script has %q, the header %q", got, want)
	}
	for _, name := range want {
		if page := read("man/" + name + ".3"); !strings.Contains(page, ".SH NAME") && !strings.HasPrefix(page, ".so man3/") {
			t.Errorf("no man page of %s", name)
		}
	}
	out := t.TempDir()
	if words, err := exec.Command("make", "-j2", "-C", dir, "install", "OUT="+out, "DESTDIR="+out, "CFLAGS=-O0").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, words)
	}
	symbols, err := exec.Command("nm", "--dynamic", "--defined-only", filepath.Join(out, "usr/local/lib/libsconpipe.so.1")).Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := names(` T (\w+)@@SCONPIPE_1`, string(symbols)); !slices.Equal(got, want) {
		t.Errorf("the library exports %q, the header has %q", got, want)
	}
}
