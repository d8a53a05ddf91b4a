package doctor

import (
	"bufio"
	"fmt"
	"strings"
)

func checkRoot(h host) result {
	if !h.isRoot() {
		return result{note, fmt.Sprintf("user %d", h.euid), "run 'sudo scon doctor'"}
	}
	return result{ok, "root", ""}
}

func checkKernel(h host) result {
	v, err := parseVersion(h.release)
	switch {
	case err != nil:
		return result{fail, err.Error(), fmt.Sprintf("run Linux %v or newer", floor)}
	case v.before(floor):
		return result{fail, h.release, fmt.Sprintf("run Linux %v or newer", floor)}
	default:
		return result{ok, h.release, ""}
	}
}

// checkJIT reads the sysctl, which only the initial network namespace has and only
// root may read. In another namespace it loads a program.
func checkJIT(h host) result {
	const name = "net.core.bpf_jit_enable"
	value, err := h.sysctl(name)
	switch {
	case err != nil && !h.isRoot():
		return unchecked
	case err != nil:
		return compiled(compile())
	case value == "0":
		return result{warn, name + " = 0", "sysctl -w " + name + "=1"}
	default:
		return result{ok, name + " = " + value, ""}
	}
}

func checkBTF(h host) result {
	if !h.exists("/sys/kernel/btf/vmlinux") {
		return result{note, "no /sys/kernel/btf/vmlinux", ""}
	}
	return result{ok, "/sys/kernel/btf/vmlinux", ""}
}

func checkForward(h host) result {
	const name = "net.ipv4.ip_forward"
	value, err := h.sysctl(name)
	switch {
	case err != nil:
		return result{warn, "no " + name, ""}
	case value != "1":
		return result{warn, name + " = " + value, "sysctl -w " + name + "=1 (Docker does it when it starts)"}
	default:
		return result{ok, name + " = 1", ""}
	}
}

// checkForward6 reports a note only: most machines have no containers with IPv6.
func checkForward6(h host) result {
	const name = "net.ipv6.conf.all.forwarding"
	value, err := h.sysctl(name)
	switch {
	case err != nil:
		return result{note, "no " + name, ""}
	case value != "1":
		return result{note, name + " = " + value, "sysctl -w " + name + "=1 (Docker does it where a network has IPv6)"}
	default:
		return result{ok, name + " = 1", ""}
	}
}

// checkBPFFS reports whether bpffs is, or can be, mounted at /sys/fs/bpf.
func checkBPFFS(h host) result {
	const dir = "/sys/fs/bpf"
	mounts, err := h.read("/proc/thread-self/mounts")
	if err != nil {
		return result{note, err.Error(), ""}
	}
	for sc := bufio.NewScanner(strings.NewReader(mounts)); sc.Scan(); {
		if f := strings.Fields(sc.Text()); len(f) > 2 && f[1] == dir && f[2] == "bpf" {
			return result{ok, "mounted at " + dir, ""}
		}
	}
	types, err := h.read("/proc/filesystems")
	switch {
	case err != nil:
		return result{note, err.Error(), ""}
	case !h.exists(dir):
		return result{fail, "no " + dir, "mount -t sysfs sysfs /sys, on a kernel with CONFIG_BPF_SYSCALL"}
	}
	for sc := bufio.NewScanner(strings.NewReader(types)); sc.Scan(); {
		if f := strings.Fields(sc.Text()); f[len(f)-1] == "bpf" {
			return result{ok, "not mounted; 'scon up' mounts it at " + dir, ""}
		}
	}
	return result{fail, "the kernel has no bpffs", "run a kernel with CONFIG_BPF_SYSCALL"}
}

// runtimes are the container runtimes by the sockets they listen on.
var runtimes = []struct{ name, socket string }{
	{"Docker", "/run/docker.sock"},
	{"Podman", "/run/podman/podman.sock"},
	{"containerd", "/run/containerd/containerd.sock"},
	{"k3s", "/run/k3s/containerd/containerd.sock"},
	{"CRI-O", "/run/crio/crio.sock"},
}

func checkRuntimes(h host) result {
	var found []string
	for _, r := range runtimes {
		if h.exists(r.socket) {
			found = append(found, r.name)
		}
	}
	if len(found) == 0 {
		return result{note, "no socket of a runtime", ""}
	}
	return result{ok, strings.Join(found, ", "), ""}
}
