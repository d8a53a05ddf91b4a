package docker

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/machine"
)

const (
	edgeAddr = machine.EdgeAddr
	hostAddr = machine.HostAddr

	// hostNetns is the name of the machine's network namespace for the machine's
	// ip(8).
	hostNetns = "host"

	// patience is the timeout of waits. It is no assertion about time.
	patience = 20 * time.Second
)

// Machine is a host under test with an edge outside, in namespaces of its own.
// The package comment draws it.
type Machine struct{ *machine.Machine }

// newMachine boots a machine, removed with everything in it at the end of the
// test.
func newMachine(t *testing.T) *Machine {
	t.Helper()
	m, err := machine.Boot()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return &Machine{m}
}

// Sh runs a script on the machine and returns its output.
func (m *Machine) Sh(t *testing.T, script string) string {
	t.Helper()
	return output(t, m.Command("sh", "-ec", script))
}

// DialEdge opens a connection from the edge.
func (m *Machine) DialEdge(network, addr string) (net.Conn, error) {
	return dial(m.Edge(), network, addr, patience)
}

// ListenEdge listens at an address of the edge until the end of the test and
// returns it with its port. Connections are closed at once.
func (m *Machine) ListenEdge(t *testing.T, addr string) string {
	t.Helper()
	var l net.Listener
	err := netns.Do(m.Edge(), func() (err error) {
		l, err = net.Listen("tcp", addr)
		return err
	})
	if err != nil {
		t.Fatalf("listen at the edge: %v", err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			conn.Close()
		}
	}()
	return l.Addr().String()
}

// dial opens a connection from a network namespace. A socket stays in the
// namespace that it was created in.
func dial(from, network, addr string, limit time.Duration) (conn net.Conn, err error) {
	err = netns.Do(from, func() error {
		conn, err = net.DialTimeout(network, addr, limit)
		return err
	})
	return conn, err
}

// output runs a command and returns its standard output. The test fails at once if
// the command fails.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v\n%s%s", cmd.Args, err, out, &stderr)
	}
	return string(out)
}

// background starts a command that ends with the machine at the latest. A test that
// fails logs the end of its output.
func background(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatalf("%q: %v", cmd.Args, err)
	}
	go cmd.Wait()
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := os.ReadFile(log.Name())
			t.Logf("end of the output of %q:\n%s", cmd.Args, out[max(0, len(out)-4<<10):])
		}
	})
}

// eventually repeats try until it returns nil, and returns the time it took. At the
// timeout, the test fails with the last error.
func eventually(t *testing.T, what string, try func() error) time.Duration {
	t.Helper()
	begin := time.Now()
	for {
		err := try()
		took := time.Since(begin)
		if err == nil {
			return took
		}
		if took > patience {
			t.Fatalf("%s: not within %v: %v", what, took.Round(time.Second), err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
