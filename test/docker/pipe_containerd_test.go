package docker

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/scon-project/scon/test/bed/image"
)

// buildStaticLoad builds the pipe's load program for an image without
// libraries, and returns the folder that contains only it.
func buildStaticLoad(t *testing.T) (folder string) {
	t.Helper()
	build, folder := t.TempDir(), t.TempDir()
	for _, args := range [][]string{
		{"-C", "../../libsconpipe", "OUT=" + build, build + "/libsconpipe.a"},
		{"-C", "../../examples", "OUT=" + build, "CFLAGS=-O2 -static", build + "/scon-pipe-load"},
	} {
		if out, err := exec.Command("make", args...).CombinedOutput(); err != nil {
			t.Fatalf("build the load program: %v: %s", err, out)
		}
	}
	if err := os.Rename(filepath.Join(build, "scon-pipe-load"), filepath.Join(folder, "scon-pipe-load")); err != nil {
		t.Fatal(err)
	}
	return folder
}

// startPipe boots a machine with containerd and SCON with the pipe and a network for
// containers.
func startPipe(t *testing.T) (c *Containerd, s *SCON) {
	t.Helper()
	lists := writeNetwork(t)
	c = startContainerd(t, lists)
	return c, newSCON(t, c.Machine, "--config", writeConfig(t, fmt.Sprintf(podConfig, listOf(lists))+pipeConfig))
}

// awaitName waits until a name is bound at the broker.
func (s *SCON) awaitName(t *testing.T) {
	t.Helper()
	eventually(t, "a name", func() error {
		if n := len(s.pipe(t).Names); n != 1 {
			return fmt.Errorf("%d names are bound", n)
		}
		return nil
	})
}

// wantCarried fails unless a connection was made, carried bytes and has ended.
func (s *SCON) wantCarried(t *testing.T) {
	t.Helper()
	eventually(t, "end of the connection", func() error {
		if p := s.pipe(t); p.Made != 1 || p.SentBytes == 0 || p.MemoryBytes != 0 {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
}

// In TestPipePods pods with the runtime's default seccomp profile exchange bytes
// through the pipe. A Kubernetes hostPath volume is such a mount to containerd.
func TestPipePods(t *testing.T) {
	programs := buildStaticLoad(t)
	c, s := startPipe(t)
	start := func(name, verb, address string) (id string) {
		t.Helper()
		pod := c.run(t, name, "")
		if address == "" {
			address = c.address(t, pod)
		}
		r, err := c.client.CreateContainer(t.Context(), &cri.CreateContainerRequest{
			PodSandboxId: pod, SandboxConfig: c.pod(name),
			Config: &cri.ContainerConfig{
				Metadata: &cri.ContainerMetadata{Name: "load"},
				Image:    &cri.ImageSpec{Image: image.Name},
				Command:  []string{"/programs/scon-pipe-load", verb, fmt.Sprintf("bpf:%s:%d", address, pipePort), "--warm", "0.01", "--seconds", "0.05"},
				Mounts: []*cri.Mount{
					{HostPath: "/run/scon/pipe", ContainerPath: "/run/scon/pipe", Readonly: true},
					{HostPath: programs, ContainerPath: "/programs", Readonly: true},
				},
				Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{
					Seccomp: &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
				}},
			},
		})
		if err != nil {
			t.Fatalf("make a container of pod %s: %v", name, err)
		}
		if _, err := c.client.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: r.ContainerId}); err != nil {
			t.Fatalf("start a container of pod %s: %v", name, err)
		}
		return r.ContainerId
	}
	server := start("server", "listen", "")
	s.awaitName(t)
	address, _, _ := strings.Cut(s.pipe(t).Names[0].Name, ":")
	client := start("client", "connect", address)
	for _, id := range []string{client, server} {
		eventually(t, "end of the load", func() error {
			r, err := c.client.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: id})
			if err != nil {
				return err
			}
			if r.Status.State != cri.ContainerState_CONTAINER_EXITED || r.Status.ExitCode != 0 {
				return fmt.Errorf("%v, status %d", r.Status.State, r.Status.ExitCode)
			}
			return nil
		})
	}
	s.wantCarried(t)
}

// In TestPipeTasks containers of ctr exchange bytes through the pipe, with the option
// from docs/pipe.md.
func TestPipeTasks(t *testing.T) {
	programs := buildStaticLoad(t)
	c, s := startPipe(t)
	oci := filepath.Join(filepath.Dir(s.bin), "scon-oci")
	run := func(name string, more ...string) string {
		t.Helper()
		args := append([]string{"--namespace", "k8s.io", "run", "--snapshotter", "native", "--runc-binary", oci,
			"--cgroup", "/" + c.cgroup + "/" + name, "--env", "SCON_NETWORK=pods", "--seccomp",
			"--mount", "type=bind,src=" + programs + ",dst=/programs,options=rbind:ro",
			"--mount", "type=bind,src=/run/scon/pipe,dst=/run/scon/pipe,options=rbind:ro"}, more...)
		t.Cleanup(func() { _ = c.end(name) })
		return output(t, c.Command("ctr", args...))
	}
	run("server", "--detach", image.Name, "server",
		"/programs/scon-pipe-load", "listen", fmt.Sprintf("bpf:0.0.0.0:%d", pipePort), "--warm", "0.01", "--seconds", "0.05")
	address := s.wantAttached(t)
	s.awaitName(t)
	report := run("client", image.Name, "client",
		"/programs/scon-pipe-load", "connect", fmt.Sprintf("bpf:%s:%d", address, pipePort), "--warm", "0.01", "--seconds", "0.05")
	if !strings.Contains(report, `"bytes": `) {
		t.Errorf("the client printed %q", report)
	}
	s.wantCarried(t)
}
