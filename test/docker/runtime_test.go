package docker

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/startup/control"
	"github.com/scon-project/scon/internal/state"
)

// podNetwork is a network of the agent, podConfig the settings with it.
const (
	podNetwork = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "scon-cni", "bridge": "pods0", "isGateway": true,
		"ipam": {"type": "scon", "subnet": "10.99.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}}]}`
	podConfig = `startup:
  enabled: true
  networks: [%s]
  env_networks: [pods, lost]
  pool: {warm_target: 2, minimum: 1}
`
)

// writeNetwork writes the list of the network "pods" into a folder.
func writeNetwork(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	if err := os.WriteFile(listOf(folder), []byte(podNetwork), 0o600); err != nil {
		t.Fatal(err)
	}
	return folder
}

func listOf(folder string) string { return filepath.Join(folder, "10-pods.conflist") }

// newStarter starts SCON with an agent for the network whose list is in a
// folder.
func newStarter(t *testing.T, m *Machine, lists string) *SCON {
	t.Helper()
	config := filepath.Join(t.TempDir(), "scon.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, podConfig, listOf(lists)), 0o600); err != nil {
		t.Fatal(err)
	}
	return newSCON(t, m, "--config", config)
}

// startup returns the output of `scon startup status --json`.
func (s *SCON) startup(t *testing.T) (st control.Startup) {
	t.Helper()
	if err := s.read(&st, "startup", "status"); err != nil {
		t.Fatal(err)
	}
	return st
}

// attached waits until n containers are attached, and returns them.
func (s *SCON) attached(t *testing.T, n int) (attached []control.StartupAttachment) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d are attached", n), func() error {
		if attached = s.startup(t).Attachments; len(attached) != n {
			return fmt.Errorf("attached: %+v", attached)
		}
		return nil
	})
	return attached
}

// wantAttached fails unless one container has a device from the pool, and
// returns its address.
func (s *SCON) wantAttached(t *testing.T) (address string) {
	t.Helper()
	a := s.attached(t, 1)[0]
	if !a.Pooled || len(a.Addresses) != 1 {
		t.Fatalf("attached: %+v; in place: %v", a, s.startup(t).InPlace)
	}
	address, _, _ = strings.Cut(a.Addresses[0], "/")
	return address
}

// wantClean waits until no container is attached and only the pool's devices are left,
// whose namespaces have no names. After three starts in a second the pool has a target
// of three for a minute.
func (s *SCON) wantClean(t *testing.T) {
	t.Helper()
	s.attached(t, 0)
	eventually(t, "only the pool is left", func() error {
		n := s.startup(t).Networks[0]
		devices := s.machine.Sh(t, "ip -o link | grep -c ' sc[np][0-9a-f]*@' || true")
		names := s.machine.Sh(t, "ls /run/netns | grep ^cni- || true")
		if want := fmt.Sprintln(n.Pool.Target); n.Pool.Ready != n.Pool.Target || n.Addresses != n.Pool.Target || devices != want || names != "" {
			return fmt.Errorf("network is %+v with pool %+v, devices %s, namespaces %s", n, n.Pool, devices, names)
		}
		return nil
	})
}

// host returns the path of the machine's network namespace.
func (m *Machine) host() string { return fmt.Sprintf("/proc/%d/ns/net", m.PID()) }

// exchange sends a line to an echo server from a network namespace.
func exchange(t *testing.T, from, address string) {
	t.Helper()
	var conn net.Conn
	eventually(t, "connection to "+address, func() (err error) {
		conn, err = dial(from, "tcp4", fmt.Sprintf("%s:%d", address, echoPort), 2*time.Second)
		return err
	})
	defer conn.Close()
	line := []byte("hello\n")
	if _, err := conn.Write(line); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, line); err != nil || string(line) != "hello\n" {
		t.Errorf("%s answers %q, %v", address, line, err)
	}
}

// In TestRuntime Docker starts containers with scon-oci: one that names a network
// gets it from the agent's pool, all others get Docker's.
func TestRuntime(t *testing.T) {
	bin, err := buildSCON()
	if err != nil {
		t.Fatal(err)
	}
	e := Start(t, "--add-runtime=scon="+filepath.Join(filepath.Dir(bin), "scon-oci"))
	s := newStarter(t, e.Machine, writeNetwork(t))
	ours := []string{"--runtime", "scon", "--network", "none", "--env", "SCON_NETWORK=pods"}

	t.Run("pooled", func(t *testing.T) {
		c := e.RunEcho(t, "echo", ours...)
		address := s.wantAttached(t)
		exchange(t, e.host(), address)
		if out := e.Docker(t, c.Exec("busybox", "ip", "-4", "-o", "address", "show", "eth0")...); !strings.Contains(out, address+"/24") {
			t.Errorf("in the container: %s", out)
		}
		e.Docker(t, "pause", c.Name)
		e.Docker(t, "unpause", c.Name)
		e.Docker(t, "kill", "--signal", "WINCH", c.Name)
		exchange(t, e.host(), address)

		s.Kill(t, state.Startup)
		exchange(t, e.host(), address)
		s.Up(t)
		if again := s.wantAttached(t); again != address {
			t.Errorf("the address changed from %s to %s", address, again)
		}
		exchange(t, e.host(), address)

		e.Docker(t, "restart", "--time", "1", c.Name)
		c.waitListening(t, echoPort)
		exchange(t, e.host(), s.wantAttached(t))
		c.Stop(t)
		s.wantClean(t)
		e.Docker(t, "start", c.Name)
		c.waitListening(t, echoPort)
		exchange(t, e.host(), s.wantAttached(t))
		c.Remove(t)
		s.wantClean(t)
	})
	t.Run("published", func(t *testing.T) {
		c := e.RunEcho(t, "echo", "--runtime", "scon")
		exchange(t, e.Edge(), hostAddr)
		exchange(t, e.host(), c.Address)
		c.Remove(t)
		s.wantClean(t)
	})
	t.Run("another's network", func(t *testing.T) {
		first := e.RunEcho(t, "echo", "--runtime", "scon")
		for _, network := range []string{"container:echo", "host"} {
			c := e.Run(t, Spec{
				Name: "second", Image: "echo", Options: []string{"--runtime", "scon", "--env", "SCON_NETWORK=pods", "--network", network},
				Command: []string{"sleep", "600"},
			})
			s.attached(t, 0)
			c.Remove(t)
		}
		exchange(t, e.Edge(), hostAddr)
		first.Remove(t)
	})
	t.Run("killed", func(t *testing.T) {
		c := e.RunEcho(t, "echo", ours...)
		s.wantAttached(t)
		s.Kill(t, state.Startup)
		c.Remove(t) // without a request to the agent
		s.Up(t)
		s.wantClean(t)
	})
	t.Run("unknown network", func(t *testing.T) {
		e.Import(t, Image{Name: "empty"})
		out, err := e.Command("docker", "run", "--name", "lost", "--runtime", "scon", "--network", "none",
			"--env", "SCON_NETWORK=lost", "empty", "sleep", "600").CombinedOutput()
		if err == nil || !strings.Contains(string(out), `network "lost" is not known`) {
			t.Errorf("%v: %s", err, out)
		}
		e.Docker(t, "rm", "--force", "lost")
		s.wantClean(t)
	})
}
