package discover

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// containerID matches the identifiers of containers of Docker, Podman,
// containerd and CRI-O.
var containerID = regexp.MustCompile(`^[0-9a-f]{64}$`)

// cgroups reads the cgroups of processes below proc.
type cgroups struct {
	proc string
	own  map[string]bool // containers that this process itself is in
}

func (n *Namer) cgroups() cgroups {
	c := cgroups{proc: n.at.proc, own: make(map[string]bool)}
	for {
		_, id := c.containerOf("self")
		if id == "" {
			return c
		}
		c.own[id] = true
	}
}

// containerOf returns the runtime and the container of a process; both are "" if it is in none.
func (c cgroups) containerOf(process string) (runtime, id string) {
	b, err := os.ReadFile(filepath.Join(c.proc, process, "cgroup"))
	if err != nil {
		return "", ""
	}
	return parseCgroup(string(b), c.own)
}

// parseCgroup parses /proc/PID/cgroup: one line for each hierarchy of version
// 1, one for version 2, with the path after the second colon.
func parseCgroup(text string, own map[string]bool) (runtime, id string) {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		if runtime, id = cgroupOwner(fields[2], own); id != "" {
			return runtime, id
		}
	}
	return "", ""
}

// cgroupOwner finds the outermost container in the path of a cgroup, but for those that this
// process is in: a container may make cgroups within its own, and give them any name. With
// systemd the runtime's name precedes the identifier; with cgroupfs it is the
// directory above.
func cgroupOwner(path string, own map[string]bool) (runtime, id string) {
	groups := strings.Split(path, "/")
	for i := 1; i < len(groups); i++ {
		group, above := strings.TrimSuffix(groups[i], ".scope"), groups[i-1]
		runtime, id := containerIn(group, above, groups[:i])
		if id != "" && !own[id] {
			return runtime, id
		}
	}
	return "", ""
}

// containerIn returns the container whose cgroup has a name, below others.
func containerIn(group, above string, path []string) (runtime, id string) {
	if name, ok := strings.CutPrefix(group, "lxc.payload."); ok {
		return "lxc", name
	}
	if above == "lxc" && group != "" {
		return "lxc", group
	}
	for prefix, runtime := range map[string]string{
		"":                runtimeAbove(path, above),
		"docker-":         "docker",
		"libpod-":         "podman",
		"cri-containerd-": "containerd",
		"nerdctl-":        "containerd",
		"crio-":           "cri-o",
	} {
		if id, ok := strings.CutPrefix(group, prefix); ok && containerID.MatchString(id) {
			return runtime, id
		}
	}
	return "", ""
}

// runtimeAbove guesses the runtime from the directory above an identifier:
// Docker has one of its own, containerd one per namespace.
func runtimeAbove(path []string, above string) string {
	switch {
	case above == "docker":
		return "docker"
	case slices.ContainsFunc(path, func(group string) bool { return strings.Contains(group, "libpod") }):
		return "podman"
	default:
		return "containerd"
	}
}
