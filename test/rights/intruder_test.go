package rights

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/scontest"
)

// intruderEnv holds the target of a process that runs the attacks instead of
// tests.
const intruderEnv = "SCON_TEST_INTRUDER"

// target describes the objects of the attacks.
type target struct {
	Pins    []string // in the daemon's mount namespace: maps
	Map     ebpf.MapID
	Program ebpf.ProgramID
	Link    link.ID
	PID     int // process id of the daemon
}

// A try is one attack: nil means that it succeeded.
type try struct {
	name string
	do   func(target) error
}

// tries are the attacks of a local user.
var tries = []try{
	{"list the pins", func(o target) error {
		_, err := os.ReadDir(filepath.Dir(o.Pins[0]))
		return err
	}},
	{"open the pins", func(o target) error {
		for _, path := range o.Pins {
			m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
			if err != nil {
				return err
			}
			m.Close()
		}
		return nil
	}},
	{"replace a pin", func(o target) error {
		return os.Rename(o.Pins[0], o.Pins[0]) // a rename without effect
	}},
	{"open a map by its number", func(o target) error {
		m, err := ebpf.NewMapFromID(o.Map)
		if err == nil {
			m.Close()
		}
		return err
	}},
	{"open a program by its number", func(o target) error {
		p, err := ebpf.NewProgramFromID(o.Program)
		if err == nil {
			p.Close()
		}
		return err
	}},
	{"open a link by its number", func(o target) error {
		l, err := link.NewFromID(o.Link)
		if err == nil {
			l.Close()
		}
		return err
	}},
	{"open the daemon's memory", func(o target) error {
		f, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", o.PID), os.O_RDWR, 0)
		if err == nil {
			f.Close()
		}
		return err
	}},
	{"list the daemon's memory maps", func(o target) error {
		f, err := os.Open(fmt.Sprintf("/proc/%d/maps", o.PID))
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.ReadAll(f)
		return err
	}},
	{"open a file of the daemon", func(o target) error {
		f, err := os.Open(fmt.Sprintf("/proc/%d/fd/2", o.PID))
		if err == nil {
			f.Close()
		}
		return err
	}},
	{"duplicate a file descriptor of the daemon", func(o target) error {
		pid, err := unix.PidfdOpen(o.PID, 0)
		if err != nil {
			return err
		}
		defer unix.Close(pid)
		fd, err := unix.PidfdGetfd(pid, 2, 0)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}},
}

// intrude runs all attacks and prints their results.
func intrude(spec string) {
	var o target
	if err := json.Unmarshal([]byte(spec), &o); err != nil {
		fmt.Println(err)
		return
	}
	for _, try := range tries {
		fmt.Printf("%s: %v\n", try.name, try.do(o))
	}
}

// asIntruder runs all attacks with the privileges that the arguments of
// nsenter and setpriv leave, and returns the results.
func asIntruder(t *testing.T, b *scontest.Bed, o target, rights ...string) map[string]string {
	t.Helper()
	spec, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"--mount=" + b.Mounts(), "setpriv"}, rights...)
	cmd := exec.Command("nsenter", append(args, program(t))...)
	cmd.Env = append(os.Environ(), intruderEnv+"="+string(spec))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	outcome := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		name, how, _ := strings.Cut(strings.TrimSpace(line), ": ")
		outcome[name] = how
	}
	if len(outcome) != len(tries) {
		t.Fatalf("%s", out)
	}
	return outcome
}

// program is a copy of the test binary that every user may execute.
func program(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "scon-rights-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	content, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "intruder")
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}
