package docker

import (
	"bufio"
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/host/netns"
)

const (
	edgeAddr = "192.0.2.1"
	hostAddr = "192.0.2.2"

	// hostNetns is the name of the machine's network namespace for the machine's
	// ip(8).
	hostNetns = "host"

	// patience is the timeout of waits. It is no assertion about time.
	patience = 20 * time.Second
)

//go:embed machine.sh
var machineScript string

// Machine is a host under test with an edge outside, in namespaces of its own.
// The package comment draws it.
type Machine struct {
	init  *exec.Cmd
	stdin io.Closer
}

// newMachine boots a machine, removed with everything in it at the end of the
// test.
func newMachine(t *testing.T) *Machine {
	t.Helper()
	m := &Machine{init: exec.Command("sh", "-c", machineScript)}
	m.init.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET,
	}
	var stderr bytes.Buffer
	m.init.Stderr = &stderr
	stdin, err := m.init.StdinPipe()
	if err != nil {
		t.Fatalf("machine: %v", err)
	}
	m.stdin = stdin
	stdout, err := m.init.StdoutPipe()
	if err != nil {
		t.Fatalf("machine: %v", err)
	}
	if err := m.init.Start(); err != nil {
		t.Fatalf("machine: start: %v", err)
	}
	t.Cleanup(m.close)
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		m.close()
		t.Fatalf("machine: boot: %q, %v: %s", line, err, &stderr)
	}
	return m
}

// close ends init and returns when the kernel has killed all other processes.
func (m *Machine) close() {
	m.stdin.Close()
	_ = m.init.Wait() // the exit status of the shell is irrelevant
}

// edge returns the path of the edge's network namespace.
func (m *Machine) edge() string {
	return fmt.Sprintf("/proc/%d/root/run/netns/edge", m.init.Process.Pid)
}

// Command prepares a command that runs on the machine.
func (m *Machine) Command(name string, args ...string) *exec.Cmd {
	return m.enter(name, args, "--net")
}

// EdgeCommand prepares a command that runs at the edge.
func (m *Machine) EdgeCommand(name string, args ...string) *exec.Cmd {
	return m.enter(name, args, "--net="+m.edge())
}

// enter prepares a command in the machine's namespaces, the network left to
// flags of nsenter(1), with a clean environment: no DOCKER_HOST, no
// configuration from a home directory.
func (m *Machine) enter(name string, args []string, flags ...string) *exec.Cmd {
	flags = append(flags, "--target", fmt.Sprint(m.init.Process.Pid), "--mount", "--pid", "--", name)
	cmd := exec.Command("nsenter", append(flags, args...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/run"}
	cmd.Dir = "/"
	return cmd
}

// Sh runs a script on the machine and returns its output.
func (m *Machine) Sh(t *testing.T, script string) string {
	t.Helper()
	return output(t, m.Command("sh", "-ec", script))
}

// DialEdge opens a connection from the edge.
func (m *Machine) DialEdge(network, addr string) (net.Conn, error) {
	return dial(m.edge(), network, addr, patience)
}

// ListenEdge listens at an address of the edge until the end of the test and
// returns it with its port. Connections are closed at once.
func (m *Machine) ListenEdge(t *testing.T, addr string) string {
	t.Helper()
	var l net.Listener
	err := netns.Do(m.edge(), func() (err error) {
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
