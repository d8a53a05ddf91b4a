package discover

import (
	"os"
	"regexp"
	"strings"
)

// containerID matches the identifiers of containers of Docker, Podman,
// containerd and CRI-O.
var containerID = regexp.MustCompile(`^[0-9a-f]{64}$`)

// readCgroup reads a process's cgroup file and returns the runtime and the
// container of the process; both are "" if it is in none.
func readCgroup(path string) (runtime, id string) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", ""
	}
	return parseCgroup(string(b))
}

// parseCgroup parses /proc/PID/cgroup: one line for each hierarchy of version
// 1, one for version 2, with the path after the second colon.
func parseCgroup(text string) (runtime, id string) {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		if runtime, id = cgroupOwner(fields[2]); id != "" {
			return runtime, id
		}
	}
	return "", ""
}

// cgroupOwner finds the innermost container in the path of a cgroup. With
// systemd the runtime's name precedes the identifier; with cgroupfs it is the
// directory above.
func cgroupOwner(path string) (runtime, id string) {
	groups := strings.Split(path, "/")
	for i := len(groups) - 1; i > 0; i-- {
		group, above := strings.TrimSuffix(groups[i], ".scope"), groups[i-1]
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
	}
	return "", ""
}

// runtimeAbove guesses the runtime from the directory above an identifier:
// Docker has one of its own, containerd one per namespace.
func runtimeAbove(path, above string) string {
	switch {
	case above == "docker":
		return "docker"
	case strings.Contains(path, "libpod"):
		return "podman"
	default:
		return "containerd"
	}
}
