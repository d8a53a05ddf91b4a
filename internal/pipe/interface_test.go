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

// The library's exported symbols, its header, its version script and its man pages agree.
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
	if output, err := exec.Command("make", "-j2", "-C", dir, "install", "OUT="+out, "DESTDIR="+out, "CFLAGS=-O0").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	for name, options := range map[string][]string{"libsconpipe.so.0": {"--dynamic"}, "libsconpipe.a": {"--extern-only"}} {
		arguments := append(options, "--defined-only", filepath.Join(out, "usr/local/lib", name))
		symbols, err := exec.Command("nm", arguments...).Output()
		if err != nil {
			t.Fatal(err)
		}
		// The version is a symbol, too.
		if got := names(` [B-Z] (\w+)`, string(symbols)); !slices.Equal(got, want) {
			t.Errorf("%s exports %q, the header has %q", name, got, want)
		}
	}
}
