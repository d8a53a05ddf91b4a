// Package arrows holds which packages may import which, tests excepted.
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

// listed is what `go list` tells of a package.
type listed struct {
	ImportPath string
	Imports    []string // direct ones
	Deps       []string // all
}

// list lists packages with everything that they import, also by way of others.
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

// in tells whether a package is in one of the folders of the module.
func in(path string, folders ...string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool {
		return path == module+folder || strings.HasPrefix(path, module+folder+"/")
	})
}

// Express, startup and the pipe do not know each other, nor the laboratory; what
// they stand on knows none of them.
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
			t.Errorf("%s imports mdlayher/netlink; internal/host/nlmsg is for that", p.ImportPath)
		}
	}
}

// The engine copier is registered with the broker by the programs; nothing imports it.
func TestCopier(t *testing.T) {
	for _, p := range list(t, "./internal/...") {
		for _, dep := range p.Deps {
			if in(dep, "internal/pipe/copier") && !in(p.ImportPath, "internal/pipe/copier", "internal/lab") {
				t.Errorf("%s imports %s", p.ImportPath, dep)
			}
		}
	}
}

// The program that runs as a service links nothing that only measuring needs.
func TestLinked(t *testing.T) {
	for _, p := range list(t, "./cmd/scon") {
		for _, dep := range p.Deps {
			for _, heavy := range []string{
				"gonum.org/", "golang.org/x/image", "golang.org/x/text", "jsonschema", "HdrHistogram", "fortio.org/",
			} {
				if strings.Contains(dep, heavy) && !strings.HasPrefix(dep, "vendor/") { // net/http has some of its own
					t.Errorf("scon links %s", dep)
				}
			}
		}
	}
}
