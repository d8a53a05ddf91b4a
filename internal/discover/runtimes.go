package discover

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// apiTimeout is how long a container engine has to answer.
const apiTimeout = time.Second

// ask asks the container engines of this machine for a container's name, and
// says which one knew it; both are "" if none did.
func (n *Namer) ask(id string) (name, runtime string) {
	if name, err := dockerName(n.at.docker, id); err == nil {
		return name, "docker"
	}
	if name, err := dockerName(n.at.podman, id); err == nil { // Podman speaks the same
		return name, "podman"
	}
	if name, err := containerdName(n.at.containerd, id); err == nil {
		return name, "containerd"
	}
	return "", ""
}

// dockerName asks Docker's API behind a unix socket.
func dockerName(socket, id string) (string, error) {
	client := http.Client{
		Timeout: apiTimeout,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			},
		},
	}
	resp, err := client.Get("http://localhost/containers/" + id + "/json")
	if err != nil {
		return "", fmt.Errorf("ask %s for container %s: %w", socket, id, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("ask %s for container %s: %s", socket, id, resp.Status)
	}
	var container struct{ Name string }
	if err := json.NewDecoder(resp.Body).Decode(&container); err != nil {
		return "", fmt.Errorf("ask %s for container %s: %w", socket, id, err)
	}
	return strings.TrimPrefix(container.Name, "/"), nil
}

// containerdName reads a task's OCI configuration in containerd's state: the
// name that nerdctl or Kubernetes gave it, else its host name. It may be "".
func containerdName(dir, id string) (string, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*", id, "config.json"))
	if err != nil || len(paths) == 0 {
		return "", fmt.Errorf("look for container %s in %s: %w", id, dir, cmp.Or(err, os.ErrNotExist))
	}
	b, err := os.ReadFile(paths[0])
	if err != nil {
		return "", fmt.Errorf("look for container %s: %w", id, err)
	}
	var config struct {
		Hostname    string
		Annotations map[string]string
	}
	if err := json.Unmarshal(b, &config); err != nil {
		return "", fmt.Errorf("read %s: %w", paths[0], err)
	}
	return cmp.Or(
		config.Annotations["nerdctl/name"],
		config.Annotations["io.kubernetes.cri.sandbox-name"],
		config.Hostname,
	), nil
}
