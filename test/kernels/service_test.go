package kernels

import (
	_ "embed"
	"os/exec"
	"regexp"
	"runtime"
	"testing"
)

//go:embed service.sh
var serviceScript string

// serviceWorks is the expected output of service.sh.
var serviceWorks = regexp.MustCompile(`^verified
started: works
/run/scon/scon.sock srw-rw---- scon
gives metrics
(.*Overall exposure level for scon.service.*)
killed: works, restarts 1
packets go express again
Result=success
ActiveState=inactive
without cap_chown: failed
without cap_net_admin: failed
without cap_sys_ptrace: works, but does not know the container
without cap_perfmon: failed
without cap_bpf: failed
`)

// scon.service does its work in its sandbox, comes back when it is killed, and
// needs each of its capabilities.
func TestService(t *testing.T) {
	if !*full {
		t.Skip("the full form: make test-kernels")
	}
	installed := t.TempDir()
	cmd := exec.Command("make", "install", "DESTDIR="+installed)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make install: %v: %s", err, out)
	}
	files := make(map[string]string)
	addFolder(t, files, installed, "")
	for _, g := range guests {
		if g.arch != runtime.GOARCH || g.noBTF {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			out := g.output(t, job{command: serviceScript, files: files, systemd: true})
			works := serviceWorks.FindStringSubmatch(out)
			if works == nil {
				t.Fatalf("got:\n%s", out)
			}
			t.Log(works[1])
		})
	}
}
