package topology

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/scon-project/scon/internal/host/netns"
)

// label is the label of a topology's containers; its value is the topology's name.
const label = "scon.topology"

// atOnce is the number of containers that are started at a time.
const atOnce = 8

var errNoDocker = errors.New("nodes of kind linux need docker, which is not in PATH; Debian's package docker-cli has it, before Debian 13 docker.io")

// docker runs one command of the Docker client and returns its output.
func (l *Lab) docker(cmd *exec.Cmd) (string, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return "", errNoDocker
	}
	if err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", cmd.Args[1], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}

// hasContainers reports whether some nodes are containers.
func (t *Topology) hasContainers() bool {
	return slices.ContainsFunc(t.Nodes, func(n Node) bool { return n.Kind == Docker })
}

// checkDocker returns an error if there is no engine to start containers.
func (l *Lab) checkDocker(ctx context.Context) error {
	if !l.hasContainers() {
		return nil
	}
	_, err := l.docker(exec.CommandContext(ctx, "docker", "version", "--format", "{{.Server.Version}}"))
	return err
}

// startContainers starts the nodes that are containers, with Docker's network
// "none".
func (b *builder) startContainers() error {
	group, ctx := errgroup.WithContext(b.ctx)
	group.SetLimit(atOnce)
	for _, n := range b.Nodes {
		if n.Kind != Docker {
			continue
		}
		args := []string{"run", "--detach", "--network", "none",
			"--name", b.namespace(n.Name), "--hostname", n.Name, "--label", label + "=" + b.Name}
		if len(n.CPUs) > 0 {
			args = append(args, "--cpuset-cpus", listCPUs(n.CPUs))
		}
		args = append(append(args, n.Image), strings.Fields(n.Cmd)...)
		group.Go(func() error {
			if _, err := b.docker(exec.CommandContext(ctx, "docker", args...)); err != nil {
				return fmt.Errorf("node %s: %w", n.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// nameContainer gives a container's namespace a name for ip(8).
func (b *builder) nameContainer(n Node) error {
	pid, err := b.docker(exec.CommandContext(b.ctx, "docker", "inspect", "--format", "{{.State.Pid}}", b.namespace(n.Name)))
	if err != nil {
		return err
	}
	if pid == "0" {
		return fmt.Errorf("its container has exited; \"docker logs %s\" prints its output", b.namespace(n.Name))
	}
	return netns.Attach(b.namespace(n.Name), "/proc/"+pid+"/ns/net")
}

// removeContainers removes the containers of the lab, with their volumes.
func (l *Lab) removeContainers() error {
	ids, err := l.docker(exec.Command("docker", "ps", "--all", "--quiet", "--filter", "label="+label+"="+l.Name))
	if errors.Is(err, errNoDocker) {
		return nil // without an engine there are no containers
	}
	if err != nil || ids == "" {
		return err
	}
	_, err = l.docker(exec.Command("docker", append([]string{"rm", "--force", "--volumes"}, strings.Fields(ids)...)...))
	return err
}

// listCPUs formats CPU numbers for Docker.
func listCPUs(cpus []int) string {
	var words []string
	for _, cpu := range cpus {
		words = append(words, strconv.Itoa(cpu))
	}
	return strings.Join(words, ",")
}
