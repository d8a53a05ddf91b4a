package packages

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// A package that needs another one of these sources needs the version and release that
// this one has: of .deb both, of .rpm the version, which is any release of it.
func TestDependencies(t *testing.T) {
	var common struct{ Release string }
	read(t, "common.yaml", &common)
	packages := make(map[string]map[string][]string) // name, format
	for _, file := range glob(t, filepath.Join(root, "packaging/nfpm"), "*.yaml") {
		var p struct {
			Name      string
			Depends   []string
			Overrides struct{ RPM struct{ Depends []string } }
		}
		if read(t, filepath.Base(file), &p); p.Name != "" {
			packages[p.Name] = map[string][]string{"deb": p.Depends, "rpm": p.Overrides.RPM.Depends}
		}
	}
	found := 0
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		for format, wanted := range map[string]string{"deb": "%s (= ${VERSION}-" + common.Release + ")", "rpm": "%s = ${VERSION}"} {
			for _, dependency := range packages[name][format] {
				on, _, _ := strings.Cut(dependency, " ")
				if packages[on] == nil {
					continue
				}
				found++
				if want := fmt.Sprintf(wanted, on); dependency != want {
					t.Errorf("%s (%s) depends on %q, want %q", name, format, dependency, want)
				}
			}
		}
	}
	if found == 0 {
		t.Error("no package depends on another one")
	}
}

// read reads a file of packaging/nfpm.
func read(t *testing.T, name string, v any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "packaging/nfpm", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}
