package scontest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// unit is the path of the systemd unit, relative to the folders of the tests.
const unit = "../../packaging/scon.service"

// asService returns the prefix of a command line that limits a command to the
// capabilities of the systemd unit.
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

// mountBPFFS mounts a bpffs, as systemd does at boot.
func (b *Bed) mountBPFFS() {
	b.T.Helper()
	out, err := exec.Command("nsenter", "--mount="+b.Mounts(), "mount", "-t", "bpf", "-o", "mode=0700", "bpf", "/sys/fs/bpf").CombinedOutput()
	if err != nil {
		b.T.Fatalf("mount a bpffs: %v: %s", err, out)
	}
}
