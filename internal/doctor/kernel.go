package doctor

import (
	"bufio"
	"fmt"
	"strings"
)

func lookRoot(h host) sight {
	if !h.isRoot() {
		return sight{note, fmt.Sprintf("user %d", h.euid), "run 'sudo scon doctor'"}
	}
	return sight{ok, "root", ""}
}

func lookKernel(h host) sight {
	v, err := parseVersion(h.release)
	switch {
	case err != nil:
		return sight{fail, err.Error(), fmt.Sprintf("run Linux %v or newer", floor)}
	case v.before(floor):
		return sight{fail, h.release, fmt.Sprintf("run Linux %v or newer", floor)}
	default:
		return sight{ok, h.release, ""}
	}
}

// lookJIT reads the sysctl, which only the initial network namespace has and only
// root may read. In another namespace it loads a program.
func lookJIT(h host) sight {
	const name = "net.core.bpf_jit_enable"
	value, err := h.sysctl(name)
	switch {
	case err != nil && !h.isRoot():
		return unseen
	case err != nil:
		return compiled(compile())
	case value == "0":
		return sight{warn, name + " = 0", "sysctl -w " + name + "=1"}
	default:
		return sight{ok, name + " = " + value, ""}
	}
}

func lookBTF(h host) sight {
	if !h.exists("/sys/kernel/btf/vmlinux") {
		return sight{note, "no /sys/kernel/btf/vmlinux", ""}
	}
	return sight{ok, "/sys/kernel/btf/vmlinux", ""}
}

func lookForward(h host) sight {
	const name = "net.ipv4.ip_forward"
	value, err := h.sysctl(name)
	switch {
	case err != nil:
		return sight{warn, "no " + name, ""}
	case value != "1":
		return sight{warn, name + " = " + value, "sysctl -w " + name + "=1 (Docker does it when it starts)"}
	default:
		return sight{ok, name + " = 1", ""}
	}
}

// lookForward6 takes it for no fault: most machines have no containers with IPv6.
func lookForward6(h host) sight {
	const name = "net.ipv6.conf.all.forwarding"
	value, err := h.sysctl(name)
	switch {
	case err != nil:
		return sight{note, "no " + name, ""}
	case value != "1":
		return sight{note, name + " = " + value, "sysctl -w " + name + "=1 (Docker does it where a network has IPv6)"}
	default:
		return sight{ok, name + " = 1", ""}
	}
}

// lookBPFFS tells of a bpffs at /sys/fs/bpf, or one that could be mounted there.
func lookBPFFS(h host) sight {
	const dir = "/sys/fs/bpf"
	mounts, err := h.read("/proc/thread-self/mounts")
	if err != nil {
		return sight{note, err.Error(), ""}
	}
	for sc := bufio.NewScanner(strings.NewReader(mounts)); sc.Scan(); {
		if f := strings.Fields(sc.Text()); len(f) > 2 && f[1] == dir && f[2] == "bpf" {
			return sight{ok, "mounted at " + dir, ""}
		}
	}
	types, err := h.read("/proc/filesystems")
	switch {
	case err != nil:
		return sight{note, err.Error(), ""}
	case !h.exists(dir):
		return sight{fail, "no " + dir, "mount -t sysfs sysfs /sys, on a kernel with CONFIG_BPF_SYSCALL"}
	}
	for sc := bufio.NewScanner(strings.NewReader(types)); sc.Scan(); {
		if f := strings.Fields(sc.Text()); f[len(f)-1] == "bpf" {
			return sight{ok, "not mounted; 'scon up' mounts it at " + dir, ""}
		}
	}
	return sight{fail, "no file system of type bpf", "run a kernel with CONFIG_BPF_SYSCALL"}
}

// runtimes are the container runtimes by the sockets they listen on.
var runtimes = []struct{ name, socket string }{
	{"Docker", "/run/docker.sock"},
	{"Podman", "/run/podman/podman.sock"},
	{"containerd", "/run/containerd/containerd.sock"},
	{"k3s", "/run/k3s/containerd/containerd.sock"},
	{"CRI-O", "/run/crio/crio.sock"},
}

func lookRuntimes(h host) sight {
	var found []string
	for _, r := range runtimes {
		if h.exists(r.socket) {
			found = append(found, r.name)
		}
	}
	if len(found) == 0 {
		return sight{note, "no runtime's socket", ""}
	}
	return sight{ok, strings.Join(found, ", "), ""}
}
