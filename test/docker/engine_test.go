package docker

import (
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/machine"
)

// Engine is a Docker engine on a machine of its own.
type Engine struct {
	*Machine
	daemon []string // the command line of dockerd
}

// engines counts the engines of this process, for unique control groups.
var engines atomic.Uint32

// Start boots a machine and Debian's Docker engine on it, with further flags.
// Both end with the test.
func Start(t *testing.T, flags ...string) *Engine {
	t.Helper()
	cgroup := fmt.Sprintf("scon-docker-%d-%d", os.Getpid(), engines.Add(1))
	// Registered before the machine's clean-up, so that it runs afterwards: a group
	// can be removed only after its last process has ended.
	t.Cleanup(func() { removeCgroups(t, cgroup) })
	e := &Engine{Machine: newMachine(t)}
	e.daemon = append(machine.Dockerd(cgroup), flags...)
	// Everything else is Docker's default on purpose: docker0 with 172.17.0.0/16,
	// iptables rules, ip_forward (a sysctl of this network namespace), and one
	// docker-proxy process for each published port.
	e.startDaemon(t)
	return e
}

// startDaemon starts dockerd and waits until it answers.
func (e *Engine) startDaemon(t *testing.T) {
	t.Helper()
	background(t, e.Command(e.daemon[0], e.daemon[1:]...))
	eventually(t, "start of dockerd", func() error {
		out, err := e.Command("docker", "version").CombinedOutput()
		if err != nil {
			return fmt.Errorf("docker version: %w: %s", err, out)
		}
		return nil
	})
}

// restart stops dockerd, with its containers, and starts it again.
func (e *Engine) restart(t *testing.T) {
	t.Helper()
	e.Sh(t, "kill $(cat /run/docker.pid); while [ -e /run/docker.pid ]; do sleep 0.02; done")
	e.startDaemon(t)
}

// Docker runs a command of the Docker client and returns its output.
func (e *Engine) Docker(t *testing.T, args ...string) string {
	t.Helper()
	return strings.TrimSpace(output(t, e.Command("docker", args...)))
}

// Spec describes a container to run.
type Spec struct {
	Name, Image string
	Options     []string // of `docker run`
	Command     []string // command in the container
}

// Container is a running container.
type Container struct {
	Name    string
	Address string // IPv4, in the container's network
	engine  *Engine
}

// Run starts a container in the background. The end of the test removes it.
func (e *Engine) Run(t *testing.T, s Spec) *Container {
	t.Helper()
	args := append([]string{"run", "--detach", "--name", s.Name}, s.Options...)
	args = append(append(args, s.Image), s.Command...)
	c := &Container{Name: s.Name, engine: e}
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := e.Command("docker", "logs", "--tail", "50", s.Name).CombinedOutput()
			t.Logf("container %s printed:\n%s", s.Name, out)
		}
		// Fails if the test removed it.
		_ = e.Command("docker", "rm", "--force", s.Name).Run()
	})
	e.Docker(t, args...)
	c.Address = e.Docker(t, "inspect", "--format",
		"{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", s.Name)
	return c
}

// Exec prepares the arguments of a command in the container that reads
// standard input.
func (c *Container) Exec(args ...string) []string {
	return append([]string{"exec", "--interactive", c.Name}, args...)
}

// netns returns the path of the container's network namespace.
func (c *Container) netns(t *testing.T) string {
	t.Helper()
	pid := c.engine.Docker(t, "inspect", "--format", "{{.State.Pid}}", c.Name)
	return fmt.Sprintf("/proc/%d/root/proc/%s/ns/net", c.engine.PID(), pid)
}

// Dial opens a TCP connection from the container, within two seconds.
func (c *Container) Dial(t *testing.T, addr string) (net.Conn, error) {
	t.Helper()
	return dial(c.netns(t), "tcp4", addr, 2*time.Second)
}

// waitListening waits until the container accepts TCP connections from inside: from
// outside, docker-proxy could accept them instead.
func (c *Container) waitListening(t *testing.T, port int) {
	t.Helper()
	eventually(t, "start of the server in "+c.Name, func() error {
		conn, err := c.Dial(t, fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// Stop stops the container, by SIGKILL after a second: an init that does not handle
// SIGTERM ignores it.
func (c *Container) Stop(t *testing.T) {
	t.Helper()
	c.engine.Docker(t, "stop", "--time", "1", c.Name)
}

// Remove stops and removes the container.
func (c *Container) Remove(t *testing.T) {
	t.Helper()
	c.engine.Docker(t, "rm", "--force", c.Name)
}

// removeCgroups removes the control groups of a test.
func removeCgroups(t *testing.T, name string) {
	t.Helper()
	if err := machine.RemoveCgroups(name); err != nil {
		t.Errorf("remove control group %s: %v", name, err)
	}
}
