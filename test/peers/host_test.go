package peers

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/test/bed/machine"
)

// host is a machine of namespaces in which a suite runs, as root, with files and names of
// network namespaces of its own. Suites make further network namespaces and take them for
// hosts: SCON is started in those by scon.sh as well, which they call by $PEERS_HOOK.
type host struct {
	*machine.Machine
	t    *testing.T
	logs string // directory of the suite's logs
	dir  string // $PEERS of scon.sh, from outside; "" without SCON
	hook string // the path of scon.sh
	// plugins is the beginning of PATH, with a colon behind it, in which CNI's plugins are
	// found before those of a suite; may be "".
	plugins string
	env     []string
}

// Directories in the host's /run, which ends with the host also when this process is
// killed: $PEERS of scon.sh, and that of temporary files.
const (
	inside    = "/run/peers"
	temporary = "/run/tmp"
)

// settings have SCON forward after few packets: most cases have few.
const settings = "admit: 2\nstartup: {enabled: false}\npipe: {enabled: false}\n"

// newHost boots a host with an empty directory for logs. With SCON, that is active.
func newHost(t *testing.T, logs string, with bool) *host {
	t.Helper()
	if err := os.RemoveAll(logs); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	hook, err := filepath.Abs("scon.sh")
	if err != nil {
		t.Fatal(err)
	}
	m, err := machine.Boot()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	h := &host{Machine: m, t: t, logs: logs, hook: hook, env: []string{"TMPDIR=" + temporary}}
	h.must(h.command("", "mkdir", "-m", "1777", temporary))
	if with {
		h.up()
	}
	return h
}

// up starts SCON in the host's network namespace, and has the suite start it in others.
func (h *host) up() {
	h.t.Helper()
	h.dir = fmt.Sprintf("/proc/%d/root%s", h.PID(), inside)
	if err := os.MkdirAll(filepath.Join(h.dir, "counts"), 0o700); err != nil {
		h.t.Fatal(err)
	}
	h.write(filepath.Join(h.dir, "scon.yaml"), settings)
	for _, name := range []string{"scon", "scon-cni"} {
		from, err := filepath.Abs("../../bin/" + name)
		if err != nil {
			h.t.Fatal(err)
		}
		if err := os.Symlink(from, filepath.Join(h.dir, name)); err != nil {
			h.t.Fatal(err)
		}
	}
	h.env = append(h.env, "PEERS="+inside, "PEERS_HOOK="+h.hook)
	h.must(h.command("", h.hook, "up", "/run/netns/host"))
}

// counts are packets of containers.
type counts struct{ express, regular uint64 }

func (c counts) String() string {
	if c.express == 0 {
		return "none: proves nothing about packets"
	}
	return fmt.Sprintf("%d, %.1f %%", c.express, 100*float64(c.express)/float64(c.express+c.regular))
}

// status returns SCON's status in the host's network namespace.
func (h *host) status() api.Status {
	h.t.Helper()
	out, err := h.command("", h.hook, "count", "/run/netns/host").CombinedOutput()
	if err != nil {
		h.t.Fatalf("scon status: %v: %s", err, out)
	}
	return h.read("the host", out)
}

// hooked waits until SCON has hooked that many containers.
func (h *host) hooked(containers int) {
	h.t.Helper()
	for end := time.Now().Add(time.Minute); len(h.status().Containers) < containers; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			h.t.Fatalf("SCON has not hooked %d containers: %+v", containers, h.status())
		}
	}
}

// read reads a status.
func (h *host) read(where string, text []byte) (s api.Status) {
	h.t.Helper()
	if err := json.Unmarshal(text, &s); err != nil {
		h.t.Errorf("SCON's status in %s: %v: %s", where, err, text)
	} else if s.State != api.StateActive {
		h.t.Errorf("SCON is %s in %s: %s", s.State, where, s.Why)
	}
	return s
}

// with reports whether SCON is active.
func (h *host) with() bool { return h.dir != "" }

// close ends the host with all that runs there, and returns what SCON has counted in all
// network namespaces.
func (h *host) close() (sum counts) {
	h.t.Helper()
	if h.with() {
		h.must(h.command("", h.hook, "down", "/run/netns/host"))
		all, err := filepath.Glob(filepath.Join(h.dir, "counts", "*"))
		if err != nil {
			h.t.Fatal(err)
		}
		for _, path := range all {
			text, err := os.ReadFile(path)
			if err != nil {
				h.t.Fatal(err)
			}
			totals := h.read(path, text).Totals
			sum.express += totals.ExpressPackets
			sum.regular += totals.RegularPackets
		}
		h.t.Logf("SCON was active in %d network namespaces", len(all))
	}
	h.Close()
	return sum
}

// command prepares a command on the host, in a directory ("" for the root).
func (h *host) command(dir, name string, args ...string) *exec.Cmd {
	if dir != "" {
		args = append([]string{"-c", `cd "$0" && exec "$@"`, dir, name}, args...)
		name = "sh"
	}
	cmd := h.Command(name, args...)
	cmd.Env = append(cmd.Env, h.env...)
	return cmd
}

// must runs a command that succeeds.
func (h *host) must(cmd *exec.Cmd) {
	h.t.Helper()
	if err := run(cmd); err != nil {
		h.t.Fatal(err)
	}
}

// logTo sends a command's output to the file NAME.log of the logs.
func (h *host) logTo(name string, cmd *exec.Cmd) *os.File {
	h.t.Helper()
	f, err := os.Create(filepath.Join(h.logs, name+".log"))
	if err != nil {
		h.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = f, f
	return f
}

// log runs a command with its output in the file NAME.log of the logs, whose path it
// returns. That it fails is left to the suite's own report.
func (h *host) log(name string, cmd *exec.Cmd) string {
	h.t.Helper()
	f := h.logTo(name, cmd)
	defer f.Close()
	if err := cmd.Run(); err != nil {
		fmt.Fprintf(f, "%v\n", err)
	}
	return f.Name()
}

// start starts a server with its output in the file NAME.log of the logs, and waits until it
// is ready. It ends with the host at the latest.
func (h *host) start(name string, cmd *exec.Cmd, ready func() error) {
	h.t.Helper()
	f := h.logTo(name, cmd)
	defer f.Close()
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = cmd.Wait() })
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		err := ready()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			text, _ := os.ReadFile(f.Name())
			h.t.Fatalf("%s: %v: %s", name, err, text)
		}
	}
}

func (h *host) write(path, text string) {
	h.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
}
