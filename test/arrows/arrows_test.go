// Package arrows tests which packages import which.
package arrows

import (
	"bytes"
	"encoding/json"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/scon-project/scon/"

// listed is a package in the output of `go list`.
type listed struct {
	ImportPath string
	Imports    []string // direct imports
	Deps       []string // all, transitively
	// Direct imports of its tests.
	TestImports, XTestImports []string
}

// list lists packages of the module in a folder.
func list(t *testing.T, module string, patterns ...string) (all []listed) {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Imports,Deps,TestImports,XTestImports"}, patterns...)...)
	cmd.Dir = module
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, &stderr)
	}
	for packages := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := packages.Decode(&p); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// in reports whether a package is in one of the folders of the module.
func in(path string, folders ...string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool {
		return path == module+folder || strings.HasPrefix(path, module+folder+"/")
	})
}

// Express, startup and the pipe do not import each other. The packages below them import
// none of them.
func TestArrows(t *testing.T) {
	systems := []string{"internal/express", "internal/startup", "internal/pipe"}
	for folder, forbidden := range map[string][]string{
		"internal/express":     {"internal/startup", "internal/pipe"},
		"internal/startup":     {"internal/express", "internal/pipe"},
		"internal/pipe":        {"internal/express", "internal/startup"},
		"internal/host":        systems,
		"internal/api":         systems,
		"internal/config":      systems,
		"internal/state":       systems,
		"internal/service":     systems,
		"internal/metrics":     systems,
		"internal/pipe/copier": {"internal/express", "internal/startup"},
	} {
		for _, p := range list(t, "../..", "./"+folder+"/...") {
			for _, dep := range p.Deps {
				if in(dep, forbidden...) {
					t.Errorf("%s imports %s", p.ImportPath, dep)
				}
			}
		}
	}
}

// No package of the product imports the tests' bed or the laboratory, and no test of it
// the laboratory. The bed does not import the laboratory either.
func TestModules(t *testing.T) {
	for _, p := range list(t, "../..", "./...") {
		for _, dep := range p.Deps {
			if in(dep, "test", "lab") {
				t.Errorf("%s imports %s", p.ImportPath, dep)
			}
		}
		for _, dep := range slices.Concat(p.TestImports, p.XTestImports) {
			if in(dep, "lab") || in(dep, "test") && !in(dep, "test/bed") {
				t.Errorf("tests of %s import %s", p.ImportPath, dep)
			}
		}
	}
	for _, p := range list(t, "..", "./...") {
		for _, dep := range slices.Concat(p.Deps, p.TestImports, p.XTestImports) {
			if in(dep, "lab") {
				t.Errorf("%s imports %s", p.ImportPath, dep)
			}
		}
	}
	for _, p := range list(t, "../../lab", "./...") {
		for _, dep := range slices.Concat(p.Deps, p.TestImports, p.XTestImports) {
			if in(dep, "test") && !in(dep, "test/bed") {
				t.Errorf("%s imports %s", p.ImportPath, dep)
			}
		}
	}
}

// Netlink has two stacks: vishvananda/netlink, and mdlayher/netlink below nlmsg.
func TestNetlinkStacks(t *testing.T) {
	for _, p := range slices.Concat(list(t, "../..", "./..."), list(t, "..", "./..."), list(t, "../../lab", "./...")) {
		if slices.Contains(p.Imports, "github.com/mdlayher/netlink") && !in(p.ImportPath, "internal/host/nlmsg") {
			t.Errorf("%s imports mdlayher/netlink: use internal/host/nlmsg", p.ImportPath)
		}
	}
}

// The programs register the engine copier with the broker; no other package imports
// it.
func TestCopier(t *testing.T) {
	for _, p := range list(t, "../..", "./internal/...") {
		for _, dep := range p.Deps {
			if in(dep, "internal/pipe/copier") && !in(p.ImportPath, "internal/pipe/copier") {
				t.Errorf("%s imports %s", p.ImportPath, dep)
			}
		}
	}
}

// The program of the services does not link packages that only measurements need.
func TestLinked(t *testing.T) {
	for _, p := range list(t, "../..", "./cmd/scon") {
		for _, dep := range p.Deps {
			for _, heavy := range []string{
				"gonum.org/", "golang.org/x/image", "golang.org/x/text", "jsonschema", "HdrHistogram", "fortio.org/",
			} {
				if strings.Contains(dep, heavy) && !strings.HasPrefix(dep, "vendor/") { // net/http vendors some of them
					t.Errorf("scon links %s", dep)
				}
			}
		}
	}
}
