package scontest

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/state"
)

// packaging is the folder of the systemd units, relative to the folders of the tests.
const packaging = "../../packaging"

// units are the systemd units of the services.
var units = map[state.Service]string{
	state.Express: "scon.service", state.Startup: "scon-startup.service", state.Pipe: "scon-pipe.service",
}

// Capabilities returns the capabilities of a service's systemd unit, such as CAP_BPF.
func Capabilities(t *testing.T, s state.Service) []string {
	t.Helper()
	path := filepath.Join(packaging, units[s])
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const key = "CapabilityBoundingSet="
	for line := range strings.Lines(string(text)) {
		if capabilities, found := strings.CutPrefix(strings.TrimSpace(line), key); found {
			return strings.Fields(capabilities)
		}
	}
	t.Fatalf("%s has no %s", path, key)
	return nil
}

// runner returns the prefix of a command line that limits a service to the capabilities of
// its systemd unit, except Bed.Without. It is empty unless Layout.Service is set.
func (b *Bed) runner(s state.Service) []string {
	if !b.limited {
		return nil
	}
	set := "-all"
	for _, c := range Capabilities(b.T, cmp.Or(s, state.Express)) {
		if c != b.Without {
			set += ",+" + strings.TrimPrefix(strings.ToLower(c), "cap_")
		}
	}
	return []string{"setpriv", "--bounding-set=" + set, "--inh-caps=-all"}
}

// mountBPFFS mounts a bpffs, as systemd does at boot.
func (b *Bed) mountBPFFS() {
	b.T.Helper()
	out, err := exec.Command("nsenter", "--mount="+b.Mounts(), "mount", "-t", "bpf", "-o", "mode=0700", "bpf", "/sys/fs/bpf").CombinedOutput()
	if err != nil {
		b.T.Fatalf("mount a bpffs: %v: %s", err, out)
	}
}
