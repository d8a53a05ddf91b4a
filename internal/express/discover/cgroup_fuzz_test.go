package discover

import (
	"strings"
	"testing"
)

// FuzzCgroup: whatever cgroups a process is in, a container has a runtime and an identifier,
// or neither.
func FuzzCgroup(f *testing.F) {
	id := strings.Repeat("0123456789abcdef", 4)
	f.Add("0::/system.slice/docker-" + id + ".scope\n")
	f.Add("1:name=systemd:/lxc/web\n0::/\n")
	f.Add("0::/kubepods/burstable/pod1/" + id + "\n")
	f.Fuzz(func(t *testing.T, text string) {
		runtime, id := parseCgroup(text, nil)
		if (runtime == "") != (id == "") || !strings.Contains(text, id) {
			t.Errorf("%q: runtime %q, container %q", text, runtime, id)
		}
	})
}
