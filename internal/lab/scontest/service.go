package scontest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// unit is the systemd unit, as tests see it from their folders.
const unit = "../../packaging/scon.service"

// asService is what runs a command with no more capabilities than the systemd
// unit gives.
func asService(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	const key = "CapabilityBoundingSet="
	for line := range strings.Lines(string(text)) {
		caps, found := strings.CutPrefix(strings.TrimSpace(line), key)
		if !found {
			continue
		}
		set := "-all"
		for _, c := range strings.Fields(strings.ToLower(caps)) {
			set += ",+" + strings.TrimPrefix(c, "cap_")
		}
		return []string{"setpriv", "--bounding-set=" + set, "--inh-caps=-all"}
	}
	t.Fatalf("%s has no %s", unit, key)
	return nil
}

// mountBPFFS mounts what systemd mounts for its services.
func (b *Bed) mountBPFFS() {
	b.T.Helper()
	out, err := exec.Command("nsenter", "--mount="+b.Mounts(), "mount", "-t", "bpf", "-o", "mode=0700", "bpf", "/sys/fs/bpf").CombinedOutput()
	if err != nil {
		b.T.Fatalf("mounting a bpffs: %v: %s", err, out)
	}
}
