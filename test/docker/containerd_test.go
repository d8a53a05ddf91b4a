package docker

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/scon-project/scon/internal/state"
	"github.com/scon-project/scon/test/bed/image"
)

// containerdConfig configures scon-cni for pods, and the runtimes runc and
// scon (scon-oci).
const containerdConfig = `version = 2
root = "/run/containerd-data"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux"
  snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  disable_tcp_service = true
  stream_server_port = "0"
  sandbox_image = "%s"
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "%s"
    conf_dir = "%s"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.scon]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.scon.options]
        BinaryName = "%s"
`

// Containerd is a containerd on a machine of its own, with a client of its
// CRI.
type Containerd struct {
	*Machine
	cgroup string
	config string // path
	daemon *exec.Cmd
	client cri.RuntimeServiceClient
}

// startContainerd boots a machine and a containerd on it, with CNI
// configuration lists from a folder. Both end with the test.
func startContainerd(t *testing.T, lists string) *Containerd {
	t.Helper()
	if _, err := exec.LookPath("containerd"); err != nil {
		t.Fatal("no containerd: scripts/install-deps.sh startup installs it")
	}
	bin, err := buildSCON()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	plugins := filepath.Join(dir, "plugins")
	if err := os.Mkdir(plugins, 0o755); err != nil {
		t.Fatal(err)
	}
	oci := filepath.Join(filepath.Dir(bin), "scon-oci")
	programs := []string{filepath.Join(filepath.Dir(bin), "scon-cni")}
	for _, name := range []string{"loopback", "bridge", "ptp", "host-local", "portmap", "firewall", "tuning"} {
		programs = append(programs, filepath.Join("/usr/lib/cni", name))
	}
	for _, program := range programs {
		if err := os.Symlink(program, filepath.Join(plugins, filepath.Base(program))); err != nil {
			t.Fatal(err)
		}
	}
	c := &Containerd{cgroup: fmt.Sprintf("scon-containerd-%d", os.Getpid()), config: filepath.Join(dir, "config.toml")}
	text := fmt.Appendf(nil, containerdConfig, image.Name, plugins, lists, oci)
	if err := os.WriteFile(c.config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeCgroups(t, c.cgroup) })
	c.Machine = newMachine(t)
	c.start(t)

	conn, err := grpc.NewClient(fmt.Sprintf("unix:///proc/%d/root/run/containerd/containerd.sock", c.PID()),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	c.client = cri.NewRuntimeServiceClient(conn)
	c.waitReady(t)
	c.importImage(t, dir)
	return c
}

// start starts the daemon.
func (c *Containerd) start(t *testing.T) {
	t.Helper()
	c.daemon = c.Command("containerd", "--config", c.config, "--log-level", "warn")
	background(t, c.daemon)
}

// restart ends the daemon with a signal and starts it again; its containers
// keep running.
func (c *Containerd) restart(t *testing.T, signal string) {
	t.Helper()
	c.Sh(t, fmt.Sprintf("p=$(pgrep -x containerd); kill -%s $p; while kill -0 $p 2>/dev/null; do sleep 0.05; done", signal))
	c.start(t)
	c.waitReady(t)
}

// waitReady waits until containerd can start pods.
func (c *Containerd) waitReady(t *testing.T) {
	t.Helper()
	eventually(t, "start of containerd", func() error {
		r, err := c.client.Status(t.Context(), &cri.StatusRequest{})
		if err != nil {
			return err
		}
		for _, condition := range r.Status.Conditions {
			if !condition.Status {
				return fmt.Errorf("%v", condition)
			}
		}
		return nil
	})
}

// importImage imports the pods' image: busybox with sleep.
func (c *Containerd) importImage(t *testing.T, dir string) {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(dir, "root")
	if err := os.MkdirAll(filepath.Join(root, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "bin/busybox"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	image, err := image.Write(dir, root)
	if err != nil {
		t.Fatal(err)
	}
	output(t, c.Command("ctr", "--namespace", "k8s.io", "images", "import", "--snapshotter", "native", image))
}

// pod returns the configuration of a pod.
func (c *Containerd) pod(name string) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Uid: name, Namespace: "test"},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    "/" + c.cgroup,
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{}},
		},
	}
}

// run starts a pod. The end of the test removes it.
func (c *Containerd) run(t *testing.T, name, runtime string) (id string) {
	t.Helper()
	r, err := c.client.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{RuntimeHandler: runtime, Config: c.pod(name)})
	if err != nil {
		t.Fatalf("start pod %s: %v", name, err)
	}
	t.Cleanup(func() { c.remove(context.Background(), r.PodSandboxId) }) // fails if the test removed it
	return r.PodSandboxId
}

// address returns a pod's address as containerd reports it.
func (c *Containerd) address(t *testing.T, id string) string {
	t.Helper()
	r, err := c.client.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: id})
	if err != nil {
		t.Fatal(err)
	}
	if r.Status.State != cri.PodSandboxState_SANDBOX_READY {
		t.Errorf("pod %s is %v", id, r.Status.State)
	}
	return r.Status.Network.Ip
}

func (c *Containerd) remove(ctx context.Context, id string) error {
	if _, err := c.client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return err
	}
	_, err := c.client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}

// ping fails unless an address answers the machine.
func (m *Machine) ping(t *testing.T, address string) {
	t.Helper()
	m.Sh(t, "ping -n -q -c 1 -W 5 "+address)
}

// TestPods starts pods with containerd, whose namespaces the agent replaces by
// prepared ones. They survive restarts of the agent and of containerd.
func TestPods(t *testing.T) {
	lists := writeNetwork(t)
	c := startContainerd(t, lists)
	s := newStarter(t, c.Machine, lists)

	first := c.run(t, "first", "")
	s.wantAttached(t)
	address := c.address(t, first)
	c.ping(t, address)
	second := c.run(t, "second", "scon")
	s.attached(t, 2)
	c.ping(t, c.address(t, second))

	for name, restart := range map[string]func(){
		"agent killed":          func() { s.Kill(t, state.Startup); s.Up(t) },
		"containerd terminated": func() { c.restart(t, "TERM") },
		"containerd killed":     func() { c.restart(t, "KILL") },
	} {
		t.Run(name, func(t *testing.T) {
			restart()
			if again := c.address(t, first); again != address {
				t.Errorf("the address changed from %s to %s", address, again)
			}
			c.ping(t, address)
			c.ping(t, c.address(t, second))
			s.attached(t, 2)
			third := c.run(t, "third", "")
			c.ping(t, c.address(t, third))
			if err := c.remove(t.Context(), third); err != nil {
				t.Error(err)
			}
			s.attached(t, 2)
		})
	}
	for _, a := range s.attached(t, 2) {
		if !a.Pooled {
			t.Errorf("not attached from the pool: %+v; in place: %v", a, s.startup(t).InPlace)
		}
	}

	// A pod is removed while the agent is down.
	s.Kill(t, state.Startup)
	if err := c.remove(t.Context(), first); err != nil {
		t.Error(err)
	}
	s.Up(t)
	s.attached(t, 1)
	if err := c.remove(t.Context(), second); err != nil {
		t.Error(err)
	}
	s.wantClean(t)
}

// TestTasks starts a containerd container without CNI, by scon-oci.
func TestTasks(t *testing.T) {
	lists := writeNetwork(t)
	c := startContainerd(t, lists)
	s := newStarter(t, c.Machine, lists)
	oci := filepath.Join(filepath.Dir(s.bin), "scon-oci")
	run := func(name string, more ...string) {
		t.Helper()
		args := append([]string{"--namespace", "k8s.io", "run", "--detach", "--snapshotter", "native", "--runc-binary", oci,
			"--cgroup", "/" + c.cgroup + "/" + name}, more...)
		output(t, c.Command("ctr", append(args, image.Name, name)...))
		t.Cleanup(func() { _ = c.end(name) })
	}
	run("task", "--env", "SCON_NETWORK=pods")
	address := s.wantAttached(t)
	c.ping(t, address)
	out := output(t, c.Command("ctr", "--namespace", "k8s.io", "task", "exec", "--exec-id", "x", "task", "/bin/busybox", "ip", "-4", "address"))
	if !strings.Contains(out, address) {
		t.Errorf("in the container: %s", out)
	}
	if err := c.end("task"); err != nil {
		t.Error(err)
	}
	s.wantClean(t)

	run("plain")
	s.attached(t, 0)
	if err := c.end("plain"); err != nil {
		t.Error(err)
	}
	run("host", "--net-host", "--env", "SCON_NETWORK=pods")
	s.attached(t, 0)
	if err := c.end("host"); err != nil {
		t.Error(err)
	}

	// The shim is killed; the network must stay.
	run("lost", "--env", "SCON_NETWORK=pods")
	s.wantAttached(t)
	c.Sh(t, "kill -KILL $(pgrep -f '[c]ontainerd-shim-runc-v2.* -id lost')")
	eventually(t, "end of the task", func() error {
		if out := c.Sh(t, "ctr --namespace k8s.io task ls -q"); strings.Contains(out, "lost") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	s.wantClean(t)
}

// end ends and removes a container of ctr.
func (c *Containerd) end(name string) error {
	ctr := func(args ...string) error {
		out, err := c.Command("ctr", append([]string{"--namespace", "k8s.io"}, args...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ctr %q: %w: %s", args, err, out)
		}
		return nil
	}
	if err := ctr("task", "rm", "--force", name); err != nil {
		return err
	}
	return ctr("container", "rm", name)
}
