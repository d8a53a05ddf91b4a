package docker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/state"
)

// SCON is the services in a machine's network namespace. A nil SCON stands for
// a run without SCON: it asserts nothing.
type SCON struct {
	machine *Machine
	bin     string
	flags   []string // of scon up
}

// withoutAndWith runs traffic without SCON, then with SCON.
func withoutAndWith(t *testing.T, m *Machine, traffic func(t *testing.T, s *SCON)) {
	t.Run("plain", func(t *testing.T) { traffic(t, nil) })
	t.Run("scon", func(t *testing.T) { traffic(t, newSCON(t, m)) })
}

// newSCON starts SCON on a machine until the end of the test, with further
// flags of scon up.
func newSCON(t *testing.T, m *Machine, flags ...string) *SCON {
	t.Helper()
	bin, err := buildSCON()
	if err != nil {
		t.Fatal(err)
	}
	s := &SCON{machine: m, bin: bin, flags: flags}
	t.Cleanup(func() { s.Down(t) })
	t.Cleanup(func() { // runs before Down, which removes the logs
		if !t.Failed() {
			return
		}
		for _, args := range [][]string{{"status"}, {"flows"}} {
			out, err := s.command(args...).CombinedOutput()
			t.Logf("scon %s: %v\n%s", args[0], err, out)
		}
		out, _ := m.Command("tail", "-n", "50", "/run/scon/scon.log", "/run/scon/startup/scon.log", "/run/scon/broker/scon.log").CombinedOutput()
		t.Logf("logs of the services:\n%s", out)
	})
	s.Up(t)
	return s
}

// command prepares a scon command. It runs in the host's network namespace: that
// --netns moves the daemon to the machine's namespace is tested.
func (s *SCON) command(args ...string) *exec.Cmd {
	return s.machine.Enter(s.bin, args)
}

// Up starts the daemon, and waits until it is active.
func (s *SCON) Up(t *testing.T) {
	t.Helper()
	output(t, s.command(append([]string{"up", "--netns", hostNetns}, s.flags...)...))
	eventually(t, "start of the daemon", func() error {
		if st := s.Status(t); st.State != api.StateActive {
			return fmt.Errorf("state is %q", st.State)
		}
		return nil
	})
}

// Down runs scon down, which stops the services and removes their objects. No daemon
// need run.
func (s *SCON) Down(t *testing.T) {
	t.Helper()
	output(t, s.command("down", "--netns", hostNetns))
}

// Kill ends a service with SIGKILL.
func (s *SCON) Kill(t *testing.T, service state.Service) {
	t.Helper()
	running, err := state.Read(fmt.Sprintf("/proc/%d/root%s", s.machine.PID(), service.Dir("/run/scon")))
	if err != nil {
		t.Fatal(err)
	}
	s.machine.Sh(t, fmt.Sprintf("kill -KILL %d; while kill -0 %d 2>/dev/null; do sleep 0.01; done", running.PID, running.PID))
}

// Status returns the output of `scon status --json`.
func (s *SCON) Status(t *testing.T) (st api.Status) {
	t.Helper()
	if err := s.read(&st, "status"); err != nil {
		t.Fatal(err)
	}
	return st
}

// Flows returns the output of `scon flows --json`.
func (s *SCON) Flows(t *testing.T) (flows []api.Flow) {
	t.Helper()
	if err := s.read(&flows, "flows"); err != nil {
		t.Fatal(err)
	}
	return flows
}

func (s *SCON) read(into any, verb ...string) error {
	cmd := s.command(append(verb, "--json")...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("scon %q --json: %w: %s", verb, err, &stderr)
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("scon %q --json: %w:\n%s", verb, err, out)
	}
	return nil
}

// container returns the status of a container.
func (s *SCON) container(t *testing.T, name string) (api.Container, bool) {
	t.Helper()
	for _, c := range s.Status(t).Containers {
		if c.Name == name {
			return c, true
		}
	}
	return api.Container{}, false
}

// waitHooked waits until a container is hooked, and logs the time it took.
func (s *SCON) waitHooked(t *testing.T, name string) {
	t.Helper()
	if s == nil {
		return
	}
	took := eventually(t, "hooks of container "+name, func() error {
		c, ok := s.container(t, name)
		if !ok {
			return fmt.Errorf("not in the status")
		}
		missing := map[string]bool{"from_container": true, "to_container": true}
		for _, h := range s.Status(t).Hooks {
			if h.Dev == c.Dev {
				delete(missing, h.Hook)
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("%s lacks the hooks %v", c.Dev, missing)
		}
		return nil
	})
	t.Logf("container %s was in the status, with hooks, after %v", name, took)
}

// waitGone waits until nothing of a container is left, and logs the time it took.
func (s *SCON) waitGone(t *testing.T, name string) {
	t.Helper()
	if s == nil {
		return
	}
	took := eventually(t, "end of container "+name, func() error {
		if c, ok := s.container(t, name); ok {
			return fmt.Errorf("in the status: %+v", c)
		}
		for _, f := range s.Flows(t) {
			if f.Container == name {
				return fmt.Errorf("entry left: %+v", f)
			}
		}
		return nil
	})
	t.Logf("nothing of container %s was left after %v", name, took)
}

// A flowMatch selects a connection.
type flowMatch func(api.Flow) bool

// from selects the connection to a container from a client port of the edge.
func from(container, proto string, port uint16) flowMatch {
	return func(f api.Flow) bool {
		return f.Container == container && f.Proto == proto && f.Orig.Src == edgeAddr && f.Orig.Sport == port
	}
}

// to selects a container's connection to a server port of the edge.
func to(container, proto string, port uint16) flowMatch {
	return func(f api.Flow) bool {
		return f.Container == container && f.Proto == proto && f.Orig.Dst == edgeAddr && f.Orig.Dport == port
	}
}

// flow finds a connection.
func (s *SCON) flow(t *testing.T, match flowMatch) (api.Flow, error) {
	t.Helper()
	flows := s.Flows(t)
	for _, f := range flows {
		if match(f) {
			return f, nil
		}
	}
	return api.Flow{}, fmt.Errorf("no entry for the connection, but %d others: %+v", len(flows), flows)
}

// waitExpress waits until packets of a connection go express in both
// directions. nudge sends some.
func (s *SCON) waitExpress(t *testing.T, match flowMatch, nudge func()) {
	t.Helper()
	if s == nil {
		nudge()
		return
	}
	var first *api.Flow
	took := eventually(t, "express in both directions", func() error {
		nudge()
		f, err := s.flow(t, match)
		if err != nil {
			first = nil
			return err
		}
		if first == nil || f.AgeMS < first.AgeMS {
			first = &f
		}
		if f.State != api.FlowExpress || f.Confilter != api.ConfilterSuccess ||
			f.ExpressPackets[0] <= first.ExpressPackets[0] || f.ExpressPackets[1] <= first.ExpressPackets[1] {
			return fmt.Errorf("entry is %+v, was %+v", f, *first)
		}
		return nil
	})
	t.Logf("express in both directions after %v", took)
}

// expressShare is the minimum share of a connection's bytes on the express path. The
// rest are packets that renew the lease.
const expressShare = 0.9

// wantExpress runs traffic on an open express connection. It fails unless the
// bytes that traffic reports, in original and reply direction, went express,
// with at least one packet in each.
func (s *SCON) wantExpress(t *testing.T, match flowMatch, traffic func() [2]uint64) {
	t.Helper()
	if s == nil {
		traffic()
		return
	}
	before, err := s.flow(t, match)
	if err != nil {
		t.Fatal(err)
	}
	carried := traffic()
	after, err := s.flow(t, match)
	if err != nil {
		t.Fatal(err)
	}
	for i, direction := range []string{"original", "reply"} {
		bytes := after.ExpressBytes[i] - before.ExpressBytes[i]
		if float64(bytes) < expressShare*float64(carried[i]) || after.ExpressPackets[i] <= before.ExpressPackets[i] {
			t.Errorf("%s direction: %d of %d bytes went express\nbefore %+v\nafter %+v",
				direction, int64(bytes), carried[i], before, after)
		}
	}
	t.Logf("express packets %v, bytes %v of %v payload",
		[2]uint64{after.ExpressPackets[0] - before.ExpressPackets[0], after.ExpressPackets[1] - before.ExpressPackets[1]},
		[2]uint64{after.ExpressBytes[0] - before.ExpressBytes[0], after.ExpressBytes[1] - before.ExpressBytes[1]}, carried)
}

// buildSCON builds scon once for all tests, statically as `make build` does, with
// scon-cni and scon-oci beside it.
var buildSCON = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "scon-docker-")
	if err != nil {
		return "", err
	}
	builtSCON = dir
	bin := filepath.Join(dir, "scon")
	for from, name := range map[string]string{"../..": "scon", "../../lab": "scon-lab"} {
		cmd := exec.Command("go", "build", "-C", from, "-o", dir, "./cmd/"+name)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	for _, command := range [][]string{
		{"make", "-C", "../..", "bin/scon-cni", "bin/scon-oci"},
		{"cp", "../../bin/scon-cni", "../../bin/scon-oci", dir},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("build scon-cni and scon-oci: %w\n%s", err, out)
		}
	}
	return bin, nil
})

// builtSCON is the folder of the binary, "" before it is built.
var builtSCON string

// removeSCON removes the binary.
func removeSCON() error {
	if builtSCON == "" {
		return nil
	}
	return os.RemoveAll(builtSCON)
}
