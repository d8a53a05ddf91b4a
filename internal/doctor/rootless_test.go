package doctor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/test/bed/check"
)

// Containers without root are named, by the process that forwards their packets.
func TestFindRootless(t *testing.T) {
	h := host{root: t.TempDir()}
	for name, comm := range map[string]string{"41": "bash", "42": "slirp4netns", "self": "slirp4netns"} {
		dir := filepath.Join(h.root, "proc", name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "comm"), []byte(comm+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := []api.Finding{{
		Level: note, What: "containers behind process 42 (slirp4netns) are not reachable here",
		Why: "they run without root: that process hands their data to sockets of its own, and no device " +
			"of this namespace has their packets",
		Remedy: "start them as root to have them express",
	}}
	if diff := check.Diff(want, findRootless(h)); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}
