package kernels

import (
	_ "embed"
	"fmt"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"testing"
)

//go:embed service.sh
var serviceScript string

// serviceWorks is the expected output of service.sh.
var serviceWorks = regexp.MustCompile(`^verified
started: works
scon goes
scon-startup goes
scon-pipe goes
/run/scon/pipe.sock srw-rw---- root
/run/scon/scon.sock srw-rw---- scon
/run/scon/startup.sock srw-rw---- root
/run/scon/pipe/pipe.sock srw-rw-rw- root
gives metrics
3
.*Overall exposure level for scon.service: ([0-9.]+) .*
.*Overall exposure level for scon-startup.service: ([0-9.]+) .*
.*Overall exposure level for scon-pipe.service: ([0-9.]+) .*
` + unaffected("killed", "") + unaffected("hung", " hung: the watchdog saw it\n") + `scon reloaded: goes
scon-startup reloaded: goes
scon-pipe reloaded: goes
reloaded: gives metrics elsewhere
scon refuses to reload
scon goes on
scon-startup refuses to reload
scon-startup goes on
scon-pipe refuses to reload
scon-pipe goes on
scon restarted: exit-code, status 78, restarts 0
scon-startup restarted: exit-code, status 78, restarts 0
scon-pipe restarted: exit-code, status 78, restarts 0
scon mended: goes
scon-startup mended: goes
scon-pipe mended: goes
Result=success
ActiveState=inactive
scon stopped: scon-startup goes
scon stopped: scon-pipe goes
Result=success
ActiveState=inactive
scon-startup stopped: scon-pipe goes
Result=success
ActiveState=inactive
without cap_chown: failed
without cap_net_admin: failed
without cap_sys_ptrace: works, but does not know the container
without cap_perfmon: failed
without cap_bpf: failed
scon-startup without cap_dac_override: works
scon-startup without cap_net_bind_service: works
scon-startup without cap_net_admin: does not work
scon-startup without cap_net_raw: works
scon-startup without cap_sys_ptrace: does not work
scon-startup without cap_sys_admin: does not work
scon-startup without cap_perfmon: works
scon-startup without cap_bpf: works
scon-pipe without cap_net_admin: does not work
scon-pipe without cap_perfmon: does not work
scon-pipe without cap_bpf: does not work
`)

// unaffected returns the output of service.sh about each unit that is killed or hangs during
// the traffic of the others; more is appended for each unit.
func unaffected(what, more string) (lines string) {
	units := []string{"scon", "scon-startup", "scon-pipe"}
	for _, unit := range units {
		for _, other := range units {
			if other != unit {
				lines += fmt.Sprintf("%s %s: %s goes\n", unit, what, other)
			}
		}
		lines += fmt.Sprintf("%s %s: restarts 1\n", unit, what)
		if more != "" {
			lines += unit + more
		}
	}
	return lines
}

// exposed is the limit for systemd-analyze's exposure of express and of the broker.
const exposed = 4.0

// The units work in their sandboxes, are restarted when they are killed or hang while
// the traffic of the others continues, and need each of their capabilities.
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
			t.Logf("exposure of express %s, startup %s, pipe %s", works[1], works[2], works[3])
			for _, level := range []string{works[1], works[3]} {
				if n, err := strconv.ParseFloat(level, 64); err != nil || n >= exposed {
					t.Errorf("exposure level %s, want less than %v", level, exposed)
				}
			}
		})
	}
}
