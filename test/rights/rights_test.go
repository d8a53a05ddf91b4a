package rights

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/scon-project/scon/test/bed/scontest"
)

// Users other than root have no access to maps, programs, links and the daemon's memory,
// even on a bpffs that every user may list. Neither has root with the capabilities of a
// container. Root with the daemon's capabilities has access.
func TestKernelObjects(t *testing.T) {
	b := scontest.New(t, scontest.Layout{})
	out, err := exec.Command("nsenter", "--mount="+b.Mounts(), "mount", "-t", "bpf", "-o", "mode=0777", "bpf", "/sys/fs/bpf").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b.Up()
	b.Outgoing("udp", 1).GoExpress()
	o := goal(t, b)

	for name, outcome := range asIntruder(t, b, o, "--reuid=0") {
		if outcome != "<nil>" {
			t.Errorf("root: %s: %s", name, outcome)
		}
	}
	for name, outcome := range asIntruder(t, b, o, "--reuid=65534", "--regid=65534", "--clear-groups") {
		if !denied(outcome) {
			t.Errorf("nobody: %s: %s", name, outcome)
		}
	}
	const usual = "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap"
	for name, outcome := range asIntruder(t, b, o, "--bounding-set="+usual) {
		// A container has its own mount namespace, without the pins.
		if !strings.Contains(name, "pin") && !denied(outcome) {
			t.Errorf("a container's root: %s: %s", name, outcome)
		}
	}
}

func denied(outcome string) bool {
	return strings.Contains(outcome, "permission denied") || strings.Contains(outcome, "operation not permitted")
}

// goal returns a lab's daemon as target.
func goal(t *testing.T, b *scontest.Bed) target {
	t.Helper()
	o := target{PID: b.Daemon.Cmd.Process.Pid}
	for _, path := range b.Pins("[a-z]*s") {
		o.Pins = append(o.Pins, path[strings.Index(path, "/sys/fs/bpf"):])
	}
	info, err := b.Pinned("conentries").Info()
	if err != nil {
		t.Fatal(err)
	}
	o.Map, _ = info.ID()
	hooks := b.Pins("from_container_*")
	if len(hooks) == 0 {
		t.Skip("needs tcx: Linux 6.6")
	}
	l, err := link.LoadPinnedLink(hooks[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at, err := l.Info()
	if err != nil {
		t.Fatal(err)
	}
	o.Link, o.Program = at.ID, ebpf.ProgramID(at.Program)
	return o
}
