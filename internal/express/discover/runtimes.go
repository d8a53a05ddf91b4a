package discover

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/scon-project/scon/internal/httpconn"
)

const (
	// apiTimeout bounds the answer of a container engine.
	apiTimeout = time.Second
	// mostAnswer bounds its length: a container's maker decides about labels.
	mostAnswer = 4 << 20
)

// engineContainer is a container as its engine knows it.
type engineContainer struct {
	name   string // may be ""
	image  string // may be ""
	labels map[string]string
	// networks are the IDs of Docker's by their names.
	networks map[string]string
}

// ask asks the container engines of this machine for a container, and returns
// the engine that knew it, "" if none did.
func (n *Namer) ask(id string) (c engineContainer, runtime string) {
	if c, err := askDocker(n.at.docker, id); err == nil {
		n.followed.knows(n.at.docker)
		return c, "docker"
	}
	if c, err := askDocker(n.at.podman, id); err == nil { // Podman has the same API
		n.followed.knows(n.at.podman)
		return c, "podman"
	}
	if c, err := readContainerd(n.at.containerd, id); err == nil {
		return c, "containerd"
	}
	return engineContainer{}, ""
}

// askEngine asks Docker's API behind a unix socket. The caller closes the answer's body.
func askEngine(ctx context.Context, socket, target string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+target, nil)
	if err != nil {
		return nil, err
	}
	conn, err := httpconn.Dial(socket)
	if err != nil {
		return nil, err
	}
	resp, err := httpconn.Ask(conn, r)
	if err == nil && resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, errors.New(resp.Status)
	}
	return resp, err
}

// askDocker asks Docker's API behind a unix socket.
func askDocker(socket, id string) (c engineContainer, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), apiTimeout)
	defer cancel()
	resp, err := askEngine(ctx, socket, "/containers/"+id+"/json")
	if err != nil {
		return c, fmt.Errorf("ask %s for container %s: %w", socket, id, err)
	}
	defer resp.Body.Close()
	var container struct {
		Name   string
		Config struct {
			Image  string
			Labels map[string]string
		}
		NetworkSettings struct {
			Networks map[string]struct{ NetworkID string }
		}
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, mostAnswer)).Decode(&container); err != nil {
		return c, fmt.Errorf("ask %s for container %s: %w", socket, id, err)
	}
	networks := make(map[string]string)
	for name, network := range container.NetworkSettings.Networks {
		networks[name] = network.NetworkID
	}
	return engineContainer{strings.TrimPrefix(container.Name, "/"), container.Config.Image, container.Config.Labels, networks}, nil
}

// monitorsName returns the container name that conmon was started with, the
// monitor process of Podman and CRI-O: Podman has no daemon to ask. It is ""
// if there is none: a process of the container may call itself conmon.
func (c cgroups) monitorsName(pid int, container string) string {
	// While a container starts, its runtime is between them.
	const most = 4
	for range most {
		parent, err := parentOf(c.proc, pid)
		if err != nil {
			return ""
		}
		line, err := os.ReadFile(filepath.Join(c.proc, strconv.Itoa(parent), "cmdline"))
		if err != nil {
			return ""
		}
		_, in := c.containerOf(strconv.Itoa(parent))
		if args := strings.Split(string(line), "\x00"); in != container && filepath.Base(args[0]) == "conmon" {
			if i := slices.Index(args, "-n"); i >= 0 && i+1 < len(args) {
				return args[i+1]
			}
			return ""
		}
		pid = parent
	}
	return ""
}

// parentOf returns the parent of a process.
func parentOf(proc string, pid int) (parent int, err error) {
	stat, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, err
	}
	// "42 (name) S PARENT ...": the name may contain anything.
	var state rune
	_, err = fmt.Sscanf(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " %c %d", &state, &parent)
	return parent, err
}

// readContainerd reads a task's OCI configuration in containerd's state: the
// name that nerdctl or Kubernetes gave it, else its host name, which may be
// "".
func readContainerd(dir, id string) (c engineContainer, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*", id, "config.json"))
	if err != nil || len(paths) == 0 {
		return c, fmt.Errorf("find container %s in %s: %w", id, dir, cmp.Or(err, os.ErrNotExist))
	}
	b, err := os.ReadFile(paths[0])
	if err != nil {
		return c, fmt.Errorf("find container %s: %w", id, err)
	}
	var config struct {
		Hostname    string
		Annotations map[string]string
	}
	if err := json.Unmarshal(b, &config); err != nil {
		return c, fmt.Errorf("read %s: %w", paths[0], err)
	}
	name := cmp.Or(
		config.Annotations["nerdctl/name"],
		config.Annotations[criPod],
		config.Hostname,
	)
	return engineContainer{name: name, image: config.Annotations[criImage], labels: config.Annotations}, nil
}
