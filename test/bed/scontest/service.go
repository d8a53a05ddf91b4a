package scontest

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/state"
	"github.com/scon-project/scon/test/bed/lab"
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

// mountSys mounts a sysfs of device and a bpffs in it, as on a host. The services' units may
// not.
func (b *Bed) mountSys() {
	b.T.Helper()
	const cgroups = "/sys/fs/cgroup"
	kept := filepath.Join(b.Dir, "cgroup")
	if err := os.Mkdir(kept, 0o700); err != nil {
		b.T.Fatal(err)
	}
	b.inMounts("mount", "--rbind", cgroups, kept)
	b.inMounts("mount", "-t", "sysfs", "sysfs", "/sys")
	b.inMounts("mount", "--rbind", kept, cgroups)
	b.inMounts("mount", "-t", "bpf", "-o", "mode=0700", "bpf", "/sys/fs/bpf")
}

// HideSys puts an empty directory in the place of the sysfs, but for the bpffs in it, and
// returns what takes that back; with Layout.Service.
func (b *Bed) HideSys() (show func()) {
	b.T.Helper()
	b.inMounts("mount", "-t", "tmpfs", "none", "/sys/class")
	return func() { b.inMounts("umount", "/sys/class") }
}

// inMounts runs a command in device, and in the services' mount namespace.
func (b *Bed) inMounts(args ...string) {
	b.T.Helper()
	enter := []string{"--mount=" + b.Mounts(), "--net=" + b.Node(lab.Device)}
	if out, err := exec.Command("nsenter", append(enter, args...)...).CombinedOutput(); err != nil {
		b.T.Fatalf("%v: %v: %s", args, err, out)
	}
}
