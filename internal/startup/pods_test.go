package startup

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/scon-project/scon/test/bed/cri"
	"github.com/scon-project/scon/test/bed/image"
	"github.com/scon-project/scon/test/bed/nstest"
)

// podList is the network of a Kubernetes node: another plugin, after scon-cni, publishes
// ports.
const podList = `{"cniVersion": "1.0.0", "name": "net", "plugins": [
	%s,
	{"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}
]}`

// engineConfig keeps containerd from using the machine's own directories.
const engineConfig = `version = 2
root = "DIR/root"
state = "DIR/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = "DIR/engine.sock"
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux"
  snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  disable_tcp_service = true
  stream_server_port = "0"
  sandbox_image = "IMAGE"
  disable_apparmor = true
  enable_selinux = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "DIR/plugins"
    conf_dir = "DIR/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
`

// engine is a containerd in a bed's host.
type engine struct {
	b       *bed
	dir     string
	runtime *cri.Runtime
}

// engine starts a containerd with a list of plugins. It ends with the test.
func (b *bed) engine(list string) *engine {
	b.t.Helper()
	e := &engine{b: b, dir: filepath.Join(b.dir, "engine")}
	root := filepath.Join(e.dir, "image")
	for _, dir := range []string{"plugins", "net.d", "image/bin", "image/proc", "image/sys", "image/dev", "image/etc"} {
		if err := os.MkdirAll(filepath.Join(e.dir, dir), 0o755); err != nil {
			b.t.Fatal(err)
		}
	}
	for name, content := range map[string]string{
		"config.toml":        strings.NewReplacer("DIR", e.dir, "IMAGE", image.Name).Replace(engineConfig),
		"net.d/net.conflist": list,
	} {
		if err := os.WriteFile(filepath.Join(e.dir, name), []byte(content), 0o600); err != nil {
			b.t.Fatal(err)
		}
	}
	e.sh("ln -s %s/* /usr/lib/cni/* %s/plugins && cp $(command -v busybox) %s/bin/", bin, e.dir, root)
	b.t.Cleanup(removeIfNew("/run/containerd/runc/k8s.io", "/run/containerd/runc", "/run/containerd/s", "/run/containerd"))

	cmd := exec.Command("containerd", "--config", filepath.Join(e.dir, "config.toml"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var says strings.Builder
	cmd.Stdout, cmd.Stderr = &says, &says
	nstest.Do(b.t, b.host, func() {
		if err := cmd.Start(); err != nil {
			b.t.Fatalf("%v: scripts/install-deps.sh startup installs containerd", err)
		}
	})
	b.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if b.t.Failed() {
			b.t.Logf("containerd: %s", says.String())
		}
	})
	var err error
	if e.runtime, err = cri.Connect(filepath.Join(e.dir, "engine.sock")); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { e.runtime.Close() })
	eventually(b.t, "containerd is ready", func() bool { return e.runtime.Ready(context.Background()) })
	file, err := image.Write(e.dir, root)
	if err != nil {
		b.t.Fatal(err)
	}
	e.sh("ctr --address %s/engine.sock --namespace k8s.io images import --snapshotter native %s", e.dir, file)
	return e
}

func (e *engine) sh(format string, args ...any) {
	e.b.t.Helper()
	if out, err := exec.Command("sh", "-c", fmt.Sprintf(format, args...)).CombinedOutput(); err != nil {
		e.b.t.Fatalf(format+": %v: %s", append(args, err, out)...)
	}
}

// removeIfNew returns a function that removes those directories, inner ones first, that do
// not exist yet.
func removeIfNew(folders ...string) func() {
	var missing []string
	for _, dir := range folders {
		if _, err := os.Stat(dir); err != nil {
			missing = append(missing, dir)
		}
	}
	return func() {
		for _, dir := range missing {
			_ = os.Remove(dir) // fails if it is in use
		}
	}
}

// run starts a pod and returns its ID; port is the host's port that is forwarded to the pod's
// port 80, 0 for none.
func (e *engine) run(name string, attempt uint32, port int32) (string, error) {
	return e.runtime.Run(context.Background(), cri.Pod{Name: name, Attempt: attempt, Cgroup: e.cgroup(), Port: port})
}

func (e *engine) cgroup() string { return "/scon-" + e.b.host }

// removeAll removes pods by their IDs.
func (e *engine) removeAll(ids []string) {
	e.b.t.Helper()
	forAll(e.b.t, len(ids), func(i int) error {
		if ids[i] == "" {
			return nil
		}
		id := ids[i]
		ids[i] = ""
		return e.runtime.Remove(context.Background(), id)
	})
}

// forAll calls do for each number below n, concurrently.
func forAll(t *testing.T, n int, do func(i int) error) {
	t.Helper()
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = do(i) })
	}
	all.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("pod %d: %v", i, err)
		}
	}
}

// Thirty pods of containerd start at once, each in a pooled namespace, some with a port of the
// host. The agent is killed, a pod is restarted, and after the end of all nothing is left.
func TestPods(t *testing.T) {
	swaps(t)
	b := newBed(t)
	outside := nstest.New(t)
	nstest.Run(t, b.host, "ip link add o0 type veth peer name eth0 netns "+outside+"\nip link set o0 up\nip addr add 10.99.0.1/24 dev o0")
	nstest.Run(t, outside, "ip link set eth0 up\nip addr add 10.99.0.2/24 dev eth0")
	b.withPool(30)
	e := b.engine(fmt.Sprintf(podList, b.conf()))
	t.Cleanup(func() {
		for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
			groups, _ := filepath.Glob(pattern + e.cgroup())
			for _, dir := range groups {
				eventually(t, dir+" is empty", func() bool { return os.Remove(dir) == nil })
			}
		}
	})

	ids := make([]string, 30) // "" for one that is gone
	t.Cleanup(func() { e.removeAll(ids) })
	forAll(t, len(ids), func(i int) (err error) {
		port := int32(0)
		if i < 3 {
			port = int32(8080 + i)
		}
		ids[i], err = e.run(fmt.Sprint("p", i), 0, port)
		return err
	})
	s := b.state()
	if s.HandedOver != 30 || len(s.InPlace) > 0 || len(s.Attachments) != 30 {
		t.Errorf("%d handed over, in place: %v, %d attached", s.HandedOver, s.InPlace, len(s.Attachments))
	}
	namespace := make(map[string]string)
	addresses := make(map[string]bool)
	for _, a := range s.Attachments {
		namespace[a.Container] = a.Netns
		addresses[a.Addresses[0]] = true
	}
	if len(addresses) != 30 {
		t.Errorf("%d addresses", len(addresses))
	}
	for i, id := range ids {
		b.ping(namespace[id])
		if i < 3 {
			listen(t, namespace[id], 80)
			if !connects(t, outside, "10.99.0.1", 8080+i) {
				t.Errorf("pod %d is not reached by its port of the host", i)
			}
		}
	}

	b.kill()
	b.withPool(2)
	e.removeAll(ids[:1])
	id, err := e.run("p0", 1, 8080)
	if err != nil {
		t.Fatal(err)
	}
	ids[0] = id
	for _, a := range b.state().Attachments {
		if a.Container == id {
			listen(t, a.Netns, 80)
		}
	}
	if !connects(t, outside, "10.99.0.1", 8080) {
		t.Error("the pod that was started again is not reached by its port of the host")
	}

	e.removeAll(ids)
	if left := b.state().Attachments; len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	b.stop()
	b.wantNothing()
	for _, path := range namespace {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is left", path)
		}
	}
	if out := nstest.Run(t, b.host, "iptables-save"); strings.Contains(out, "10.88.0.") || strings.Contains(out, "CNI-DN-") {
		t.Errorf("rules are left: %s", out)
	}
}
