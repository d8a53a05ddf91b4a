package docker

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// buildRunLibrary builds the library for LD_PRELOAD and returns its path.
func buildRunLibrary(t *testing.T) string {
	t.Helper()
	if out, err := exec.Command("make", "-C", "../..", "libsconpipe").CombinedOutput(); err != nil {
		t.Fatalf("build the library: %v: %s", err, out)
	}
	path, err := filepath.Abs("../../bin/libsconrun.so")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// In TestPipeRun an unmodified program uses the pipe in containers with Docker's
// default seccomp profile, one of them not root, with the option from docs/run.md.
// Without the option the program stays on TCP.
func TestPipeRun(t *testing.T) {
	e := Start(t)
	library := buildRunLibrary(t)
	s := newSCON(t, e.Machine, "--config", writeConfig(t, pipeConfig))
	e.Import(t, Image{Name: "iperf3", Programs: []string{"iperf3"}})
	option := []string{"--volume", pipeMount, "--volume", library + ":/libsconrun.so:ro", "--env", "LD_PRELOAD=/libsconrun.so"}
	for _, test := range []struct {
		name           string
		server, client []string
		goesOver       bool
	}{
		{"both", option, option, true},
		{"one", option, nil, false},
		{"without broker", option[2:], option[2:], false},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := s.pipe(t)
			server := e.Run(t, Spec{
				Name: "server", Image: "iperf3", Options: test.server,
				Command: []string{"iperf3", "--server", "--one-off", "--forceflush"},
			})
			eventually(t, "start of iperf3", func() error {
				if said := e.Docker(t, "logs", server.Name); !strings.Contains(said, "listening") {
					return fmt.Errorf("iperf3 printed %q", said)
				}
				return nil
			})
			said := e.Docker(t, slices.Concat([]string{"run", "--rm", "--user", "65534"}, test.client,
				[]string{"iperf3", "iperf3", "--client", server.Address, "--time", "1"})...)
			if !strings.Contains(said, "iperf Done.") {
				t.Errorf("the client printed %q", said)
			}
			if status := e.Docker(t, "wait", server.Name); status != "0" {
				t.Errorf("the server ended with %s", status)
			}
			eventually(t, "end of the connection", func() error {
				p := s.pipe(t)
				if over := p.SentBytes > before.SentBytes+16<<20; over != test.goesOver || p.MemoryBytes != 0 {
					return fmt.Errorf("%+v", p)
				}
				return nil
			})
			e.Docker(t, "rm", server.Name)
		})
	}
}
