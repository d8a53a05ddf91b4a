// Package arrows tests which packages import which. Tests' own imports are excepted.
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
}

// list lists packages with their direct and transitive imports.
func list(t *testing.T, patterns ...string) (all []listed) {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Imports,Deps"}, patterns...)...)
	cmd.Dir = "../.."
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

// Express, startup and the pipe do not import each other or the lab. The packages
// below them import none of them.
func TestArrows(t *testing.T) {
	systems := []string{"internal/express", "internal/startup", "internal/pipe", "internal/lab"}
	for folder, forbidden := range map[string][]string{
		"internal/express":     {"internal/startup", "internal/pipe", "internal/lab"},
		"internal/startup":     {"internal/express", "internal/pipe", "internal/lab"},
		"internal/pipe":        {"internal/express", "internal/startup", "internal/lab"},
		"internal/host":        systems,
		"internal/api":         systems,
		"internal/config":      systems,
		"internal/state":       systems,
		"internal/service":     systems,
		"internal/metrics":     systems,
		"internal/doctor":      {"internal/lab"},
		"internal/pipe/copier": {"internal/express", "internal/startup", "internal/lab"},
		"cmd/scon":             {"internal/lab"},
	} {
		for _, p := range list(t, "./"+folder+"/...") {
			for _, dep := range p.Deps {
				if in(dep, forbidden...) {
					t.Errorf("%s imports %s", p.ImportPath, dep)
				}
			}
		}
	}
}

// Netlink has two stacks: vishvananda/netlink, and mdlayher/netlink below nlmsg.
func TestNetlinkStacks(t *testing.T) {
	for _, p := range list(t, "./...") {
		if slices.Contains(p.Imports, "github.com/mdlayher/netlink") && !in(p.ImportPath, "internal/host/nlmsg") {
			t.Errorf("%s imports mdlayher/netlink: use internal/host/nlmsg", p.ImportPath)
		}
	}
}

// The programs register the engine copier with the broker; no other package imports
// it.
func TestCopier(t *testing.T) {
	for _, p := range list(t, "./internal/...") {
		for _, dep := range p.Deps {
			if in(dep, "internal/pipe/copier") && !in(p.ImportPath, "internal/pipe/copier", "internal/lab") {
				t.Errorf("%s imports %s", p.ImportPath, dep)
			}
		}
	}
}

// The program of the services does not link packages that only measurements need.
func TestLinked(t *testing.T) {
	for _, p := range list(t, "./cmd/scon") {
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
