package vm

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

// What a killed process has left is removed; a failure leaves nothing.
func TestCached(t *testing.T) {
	root := t.TempDir()
	t.Setenv("SCON_CACHE", root)
	if err := os.MkdirAll(filepath.Join(root, "any", "files.123", "half"), 0o755); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if _, err := Cached("any", "files", func(string) error { return broken }); !errors.Is(err, broken) {
		t.Fatalf("the error of a filler that fails: %v", err)
	}
	if left := entries(t, filepath.Join(root, "any")); !slices.Equal(left, []string{"lock"}) {
		t.Errorf("a failure leaves %v, want only the lock", left)
	}
	for range 2 {
		filled := 0
		dir, err := Cached("any", "files", func(dir string) error {
			filled++
			return os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)
		})
		if err != nil || !slices.Equal(entries(t, dir), []string{"file"}) || filled > 1 {
			t.Fatalf("%s: %v, filled %d times, want one file", dir, err, filled)
		}
	}
	if left := entries(t, filepath.Join(root, "any")); !slices.Equal(left, []string{"files", "lock"}) {
		t.Errorf("the directory has %v, want files and the lock", left)
	}
}

// Packages are unpacked without what they depend on (libsepol2's lib), and nothing of apt is left.
func TestUnpacked(t *testing.T) {
	t.Setenv("SCON_CACHE", t.TempDir())
	dir, err := Unpacked(t.Context(), runtime.GOARCH, "lists", "netbase", "libsepol-dev")
	if errors.Is(err, ErrNoMirror) {
		t.Skipf("missing: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"etc/protocols", "usr/include/sepol/sepol.h"} {
		if !exists(filepath.Join(dir, file)) {
			t.Errorf("%s is not in %s", file, dir)
		}
	}
	if got := entries(t, dir); !slices.Equal(got, []string{"etc", "usr"}) {
		t.Errorf("the directory has %v, want etc and usr", got)
	}
}

// A machine without apt is told apart from one whose mirror does not answer.
func TestUnpackedWithoutApt(t *testing.T) {
	t.Setenv("SCON_CACHE", t.TempDir())
	t.Setenv("PATH", t.TempDir())
	if _, err := Unpacked(t.Context(), runtime.GOARCH, "lists", "netbase"); !errors.Is(err, ErrNoMirror) {
		t.Errorf("%v, want %v", err, ErrNoMirror)
	}
}

func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}
