// Package machine makes a Docker host with an edge outside from namespaces, where a real
// dockerd runs that nothing else on this machine sees:
//
//	 edge (outside)                     machine
//	+----------------+             +---------------------------------------+
//	| clients        |             |  dockerd   iptables   scon            |
//	|                |             |            docker0 --- veth -- nginx  |
//	|      192.0.2.1 wire ===== uplink 192.0.2.2                           |
//	+----------------+             +---------------------------------------+
//
// It is a PID, a mount and a network namespace. Its init runs as long as this process
// holds a pipe to it. When the pipe closes, also because this process was killed, the
// kernel kills all processes inside and removes every mount, link and socket.
package machine

import (
	"bufio"
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// Addresses and devices.
const (
	EdgeAddr = "192.0.2.1"
	HostAddr = "192.0.2.2" // on Uplink
	Uplink   = "uplink"
)

//go:embed machine.sh
var script string

// Machine is a running machine.
type Machine struct {
	init  *exec.Cmd
	stdin io.Closer
}

// Boot starts a machine.
func Boot() (m *Machine, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("boot a machine: namespaces need root; try sudo")
	}
	m = &Machine{init: exec.Command("sh", "-c", script)}
	m.init.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET,
		Setpgid:    true, // Ctrl-C must only reach this process
	}
	var stderr bytes.Buffer
	m.init.Stderr = &stderr
	if m.stdin, err = m.init.StdinPipe(); err != nil {
		return nil, fmt.Errorf("boot a machine: %w", err)
	}
	stdout, err := m.init.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("boot a machine: %w", err)
	}
	if err := m.init.Start(); err != nil {
		return nil, fmt.Errorf("boot a machine: %w", err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		m.Close()
		return nil, fmt.Errorf("boot a machine: %q, %w: %s", line, err, &stderr)
	}
	return m, nil
}

// Close ends init and returns when the kernel has killed all other processes.
func (m *Machine) Close() {
	m.stdin.Close()
	_ = m.init.Wait() // the exit status of the shell is irrelevant
}

// PID returns the process id of the machine's init.
func (m *Machine) PID() int { return m.init.Process.Pid }

// Netns returns the path of the machine's network namespace.
func (m *Machine) Netns() string { return fmt.Sprintf("/proc/%d/ns/net", m.PID()) }

// Edge returns the path of the edge's network namespace.
func (m *Machine) Edge() string { return fmt.Sprintf("/proc/%d/root/run/netns/edge", m.PID()) }

// Command prepares a command that runs on the machine.
func (m *Machine) Command(name string, args ...string) *exec.Cmd {
	return m.Enter(name, args, "--net")
}

// EdgeCommand prepares a command that runs at the edge.
func (m *Machine) EdgeCommand(name string, args ...string) *exec.Cmd {
	return m.Enter(name, args, "--net="+m.Edge())
}

// Enter prepares a command in the machine's namespaces, the network left to flags of
// nsenter(1), with a clean environment: no DOCKER_HOST, no configuration from a home
// directory.
func (m *Machine) Enter(name string, args []string, flags ...string) *exec.Cmd {
	flags = append(flags, "--target", fmt.Sprint(m.PID()), "--mount", "--pid", "--", name)
	cmd := exec.Command("nsenter", append(flags, args...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/run"}
	cmd.Dir = "/"
	return cmd
}
