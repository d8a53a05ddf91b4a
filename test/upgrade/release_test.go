package upgrade

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/scon-project/scon/internal/express/datapath"
)

// release is a build of scon.
type release struct {
	name    string
	layout  int    // version of the maps' layout
	program string // file
}

// Three releases. The first two have the same layout.
var (
	v1 = &release{name: "v1.0.0", layout: datapath.LayoutVersion}
	v2 = &release{name: "v1.1.0", layout: datapath.LayoutVersion}
	v3 = &release{name: "v2.0.0", layout: datapath.LayoutVersion + 1}
)

// layoutSource is the source file with the layout's version, which is not in the BPF
// programs.
const layoutSource = "../../internal/express/datapath/datapath.go"

// build builds the program in dir from these sources with the release's layout version.
func (r *release) build(dir string) error {
	r.program = filepath.Join(dir, r.name)
	overlay, err := r.overlay(dir)
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-C", "../..", "-o", r.program, "-ldflags", "-X main.release="+r.name, "-overlay", overlay, "./cmd/scon")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// overlay writes the list for go build -overlay that replaces layoutSource.
func (r *release) overlay(dir string) (list string, err error) {
	text, err := os.ReadFile(layoutSource)
	if err != nil {
		return "", err
	}
	const constant = "const LayoutVersion = %d\n"
	ours, theirs := fmt.Sprintf(constant, datapath.LayoutVersion), fmt.Sprintf(constant, r.layout)
	if strings.Count(string(text), ours) != 1 {
		return "", fmt.Errorf("%s has no %q", layoutSource, ours)
	}
	source := r.program + ".go"
	if err := os.WriteFile(source, []byte(strings.Replace(string(text), ours, theirs, 1)), 0o600); err != nil {
		return "", err
	}
	replaced, err := filepath.Abs(layoutSource)
	if err != nil {
		return "", err
	}
	words, err := json.Marshal(map[string]any{"Replace": map[string]string{replaced: source}})
	if err != nil {
		return "", err
	}
	list = r.program + ".json"
	return list, os.WriteFile(list, words, 0o600)
}
