package kernels

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// dir is the directory of the binaries during the tests.
var dir string

// building serialises builds.
var building sync.Mutex

// build builds scon, scon-lab, or the tests of a package ("datapath.test") for
// an architecture, statically linked, and returns the path.
func build(t *testing.T, arch, name string) string {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	path := filepath.Join(dir, arch, name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	command, pkg := []string{"build"}, "cmd/"+name
	if name == "scon-lab" {
		pkg = "lab/cmd/scon-lab"
	}
	if tested, ok := testedBy(name); ok {
		command, pkg = []string{"test", "-c", "-vet=off"}, tested
	}
	module, pkg := inModule(pkg)
	cmd := exec.Command("go", slices.Concat([]string{"-C", module}, command, []string{"-o", path, pkg})...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOARCH="+arch, "CGO_ENABLED=0", "GOFLAGS=-ldflags=-s")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build for the guest: %v: %s", err, out)
	}
	return path
}

// inModule returns which of the repository's modules a package is of, and its path in it.
func inModule(pkg string) (module, path string) {
	for _, module := range []string{"lab", "test"} {
		if path, ok := strings.CutPrefix(pkg, module+"/"); ok {
			return module, "./" + path
		}
	}
	return ".", "./" + pkg
}

// programs builds scon and scon-lab and returns the files of a guest.
func programs(t *testing.T, arch string) map[string]string {
	t.Helper()
	return map[string]string{"/opt/scon": build(t, arch, "scon"), "/opt/scon-lab": build(t, arch, "scon-lab")}
}

// buildC builds a C program for this machine's architecture, statically
// linked, and returns the path.
func buildC(t *testing.T, name string) string {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	path := filepath.Join("bin", name)
	if out, err := exec.Command("make", "-C", root, path).CombinedOutput(); err != nil {
		t.Fatalf("build for the guest: %v: %s", err, out)
	}
	return filepath.Join(root, path)
}

// addFolder adds the files of a folder, if it exists, to those of a guest.
func addFolder(t *testing.T, files map[string]string, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && !d.IsDir() {
			files[to+strings.TrimPrefix(path, from)] = path
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
