package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"text/template"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/scon-project/scon/lab/startbench"
	"github.com/scon-project/scon/test/bed/image"
)

// enginePatience is the timeout of containerd's start and stop.
const enginePatience = 30 * time.Second

// engineConfig keeps containerd apart from the machine's configuration and files.
var engineConfig = template.Must(template.New("").Parse(`version = 2
root = "{{.Dir}}/root-d"
state = "{{.Dir}}/state-d"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = "{{.Dir}}/engine.sock"
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux"
  snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  disable_tcp_service = true
  stream_server_port = "0"
  sandbox_image = "{{.Image}}"
  disable_apparmor = true
  enable_selinux = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{{.Plugins}}"
    conf_dir = "{{.Networks}}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    default_runtime_name = "bench"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.bench]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.bench.options]
        BinaryName = "{{.Runtime}}"
`))

// engine is the bench's containerd, with a client of its CRI.
type engine struct {
	order    startbench.Order
	networks []*network
	dir      string
	cmd      *exec.Cmd
	output   bytes.Buffer // owned by the process until ended is closed
	ended    chan struct{}
	conn     *grpc.ClientConn
	client   cri.RuntimeServiceClient
	pods     []pod
	// made are folders that containerd and its shims make outside of their own.
	made []string
}

// outside are folders with fixed paths, the inner ones first.
var outside = []string{"/run/containerd/runc/k8s.io", "/run/containerd/runc", "/run/containerd/s", "/run/containerd"}

// pod is a prepared pod.
type pod struct {
	config *cri.PodSandboxConfig
	id     string // "" until it runs
}

// openCRI starts containerd and waits until it can start pods.
func openCRI(ctx context.Context, o startbench.Order, n []*network) (_ launcher, err error) {
	e := &engine{order: o, networks: n, dir: filepath.Join(o.Dir, "engine"), ended: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	for _, dir := range outside {
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
			e.made = append(e.made, dir)
		}
	}
	if err := e.prepareDir(); err != nil {
		return nil, err
	}
	if err := e.launch(); err != nil {
		return nil, err
	}
	if err := e.waitReady(ctx); err != nil {
		return nil, fmt.Errorf("%w; containerd printed: %s", err, e.tail())
	}
	return e, nil
}

// prepareDir writes containerd's configuration, and one folder with all plugins:
// containerd takes a single one.
func (e *engine) prepareDir() error {
	plugins, networks := filepath.Join(e.dir, "plugins"), filepath.Join(e.dir, "net.d")
	for _, dir := range []string{plugins, networks} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for _, dir := range e.order.Plugins {
		files, err := os.ReadDir(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, f := range files {
			if f.IsDir() {
				continue
			}
			err := os.Symlink(filepath.Join(dir, f.Name()), filepath.Join(plugins, f.Name()))
			if err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
		}
	}
	// containerd is not ready without a network, but no pod of this bench needs one.
	for _, list := range e.order.Networks {
		text, err := os.ReadFile(list)
		if err == nil {
			err = os.WriteFile(filepath.Join(networks, filepath.Base(list)), text, 0o644)
		}
		if err != nil {
			return err
		}
	}
	runtime, err := exec.LookPath(e.order.Runtime)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	err = engineConfig.Execute(&text, map[string]string{
		"Dir": e.dir, "Plugins": plugins, "Networks": networks, "Image": image.Name, "Runtime": runtime,
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(e.dir, "config.toml"), text.Bytes(), 0o644)
}

func (e *engine) socket() string { return filepath.Join(e.dir, "engine.sock") }

func (e *engine) launch() (err error) {
	e.cmd = exec.Command("containerd", "--config", filepath.Join(e.dir, "config.toml"))
	e.cmd.Stdout, e.cmd.Stderr = &e.output, &e.output
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := e.cmd.Start(); err != nil {
		return fmt.Errorf("start containerd: %w", err)
	}
	go func() {
		e.cmd.Wait()
		close(e.ended)
	}()
	e.conn, err = grpc.NewClient("unix://"+e.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	e.client = cri.NewRuntimeServiceClient(e.conn)
	return nil
}

// waitReady returns when containerd has its image and its network.
func (e *engine) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, enginePatience)
	defer cancel()
	for {
		status, err := e.client.Status(ctx, &cri.StatusRequest{})
		if err == nil && e.ready(status) {
			break
		}
		select {
		case <-e.ended:
			return errors.New("containerd exited")
		case <-ctx.Done():
			return fmt.Errorf("containerd is not ready: %v: %w", status, errors.Join(context.Cause(ctx), err))
		case <-time.After(20 * time.Millisecond):
		}
	}
	file, err := image.Write(e.dir, e.order.Root)
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "ctr", "--address", e.socket(), "--namespace", "k8s.io",
		"images", "import", "--snapshotter", "native", file).CombinedOutput()
	if err != nil {
		return fmt.Errorf("import the pods' image: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

func (e *engine) ready(r *cri.StatusResponse) bool {
	for _, c := range r.GetStatus().GetConditions() {
		if !c.Status && (c.Type != "NetworkReady" || len(e.networks) > 0) {
			return false
		}
	}
	return r.GetStatus() != nil
}

func (e *engine) prepare(n int) error {
	for range n {
		name := fmt.Sprintf("%s-c%05d", e.order.Prefix, len(e.pods))
		c := &cri.PodSandboxConfig{
			Metadata: &cri.PodSandboxMetadata{Name: name, Uid: name, Namespace: "bench"},
			Linux: &cri.LinuxPodSandboxConfig{
				CgroupParent:    e.order.Cgroup,
				SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{}},
			},
		}
		if len(e.networks) == 0 {
			c.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_NODE
		}
		e.pods = append(e.pods, pod{config: c})
	}
	return nil
}

func (e *engine) run(ctx context.Context, p *pod) error {
	r, err := e.client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: p.config})
	if err != nil {
		return err
	}
	p.id = r.PodSandboxId
	return nil
}

func (e *engine) start(ctx context.Context, i int, t *timeline) error {
	p := &e.pods[i]
	if err := t.stage(startbench.StagePod, func() error { return e.run(ctx, p) }); err != nil {
		return err
	}
	if !e.order.Ping {
		return nil
	}
	return t.stage(startbench.StagePing, func() error {
		status, err := e.client.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: p.id})
		if err != nil {
			return err
		}
		addr, err := netip.ParseAddr(status.GetStatus().GetNetwork().GetIp())
		if err != nil {
			return err
		}
		return e.networks[0].pings.wait(ctx, addr)
	})
}

func (e *engine) remove(ctx context.Context, i int) error {
	if i >= len(e.pods) || e.pods[i].id == "" {
		return nil
	}
	id := e.pods[i].id
	_, err := e.client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
	_, removeErr := e.client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
	return errors.Join(err, removeErr)
}

// close removes the pods of a failed start and stops containerd.
func (e *engine) close() error {
	var errs []error
	if e.client != nil {
		errs = append(errs, e.removeAll())
	}
	if e.conn != nil {
		errs = append(errs, e.conn.Close())
	}
	if e.cmd != nil && e.cmd.Process != nil {
		e.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-e.ended:
		case <-time.After(enginePatience):
			e.cmd.Process.Kill()
			<-e.ended
			errs = append(errs, errors.New("containerd did not exit and was killed"))
		}
	}
	for _, dir := range e.made {
		os.Remove(dir) // fails if another process uses it
	}
	return errors.Join(append(errs, os.RemoveAll(e.dir))...)
}

func (e *engine) removeAll() error {
	ctx, cancel := context.WithTimeout(context.Background(), enginePatience)
	defer cancel()
	list, err := e.client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil // the start failed
	}
	var errs []error
	for _, p := range list.Items {
		_, err := e.client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.Id})
		_, removeErr := e.client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.Id})
		errs = append(errs, err, removeErr)
	}
	return errors.Join(errs...)
}

// tail returns the end of containerd's output.
func (e *engine) tail() string {
	select {
	case <-e.ended:
	default:
		return "(still running)"
	}
	text := strings.TrimSpace(e.output.String())
	return text[max(0, len(text)-600):]
}
