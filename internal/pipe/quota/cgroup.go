package quota

import (
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// CgroupOf returns the cgroup of a process's container; "" if it cannot be determined. The
// caller has to check that the PID was not reused meanwhile.
func CgroupOf(pid int) string {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return ""
	}
	return Cgroup(string(content))
}

// Cgroup parses the content of /proc/PID/cgroup. It returns the leading part of the path, which
// a container cannot choose: a container may create cgroups within its own. Of several
// hierarchies it takes version 2, or, if the process is in its root, the first one in which
// the process is not in the root.
func Cgroup(content string) string {
	found := ""
	for line := range strings.Lines(content) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 || !strings.HasPrefix(fields[2], "/") {
			continue
		}
		c := container(fields[2])
		if fields[0] == "0" && c != "/" {
			return c
		}
		if found == "" || found == "/" {
			found = c
		}
	}
	return found
}

// mostLevels bounds the names that are taken of a path in which no container is recognized,
// such as /lxc/NAME. A container may have created the levels below.
const mostLevels = 2

// container returns a cgroup's path up to and including the container.
func container(p string) string {
	p = path.Clean(strings.TrimSuffix(p, " (deleted)"))
	names := strings.Split(p[1:], "/")
	levels := 0
	for i, name := range names {
		if isContainer(name) {
			return "/" + strings.Join(names[:i+1], "/")
		}
		if !holdsOthers(name) {
			levels++
		}
		if levels == mostLevels {
			return "/" + strings.Join(names[:i+1], "/")
		}
	}
	return p
}

// holdsOthers reports whether a name is that of a cgroup that has containers' cgroups.
func holdsOthers(name string) bool {
	switch name {
	case "kubepods", "burstable", "besteffort":
		return true
	}
	return strings.HasSuffix(name, ".slice")
}

// isContainer reports whether a name is that of a container's cgroup, or of a systemd unit
// with processes. Neither is an ancestor of a container's cgroup.
func isContainer(name string) bool {
	if strings.HasSuffix(name, ".scope") || strings.HasSuffix(name, ".service") || strings.HasPrefix(name, "lxc.payload.") {
		return true
	}
	digits := 0
	for _, c := range name {
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'f' {
			digits++
		} else {
			digits = 0
		}
		if digits == idDigits {
			return true
		}
	}
	return false
}

// idDigits is the number of hexadecimal digits in a container's ID.
const idDigits = 64

// cgroupRoot is where systemd, and so every distribution, mounts the cgroups of version 2.
const cgroupRoot = "/sys/fs/cgroup"

// Processors returns the limit of a container's processors, as of its cgroup, which CgroupOf
// has returned, or of a cgroup above (cpu.max of cgroup 2); 0: there is none, or it cannot be
// read.
func Processors(cgroup string) (limit float64) {
	if cgroup == "" {
		return 0
	}
	for p := path.Clean(cgroup); p != "/"; p = path.Dir(p) {
		content, err := os.ReadFile(filepath.Join(cgroupRoot, p, "cpu.max"))
		if err != nil {
			continue
		}
		if n := parseCPUMax(string(content)); n > 0 && (limit == 0 || n < limit) {
			limit = n
		}
	}
	return limit
}

// parseCPUMax parses cpu.max: the quota in us, or "max", and the period in us.
func parseCPUMax(content string) float64 {
	fields := strings.Fields(content)
	if len(fields) != 2 {
		return 0
	}
	quota, err := strconv.ParseFloat(fields[0], 64)
	if err != nil {
		return 0 // max
	}
	period, err := strconv.ParseFloat(fields[1], 64)
	if err != nil || period <= 0 {
		return 0
	}
	return quota / period
}
