package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// host is the checked machine; tests use a fixture.
type host struct {
	root    string // where /proc, /sys, /run and /boot are, "/" but in tests
	euid    int
	release string // as uname -r
}

func thisHost() host {
	h := host{root: "/", euid: os.Geteuid()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.release = unix.ByteSliceToString(u.Release[:])
	}
	return h
}

func (h host) isRoot() bool { return h.euid == 0 }

func (h host) path(name string) string { return filepath.Join(h.root, name) }

// read is a file of one value, without the line's end.
func (h host) read(name string) (string, error) {
	content, err := os.ReadFile(h.path(name))
	return strings.TrimSpace(string(content)), err
}

func (h host) exists(name string) bool {
	_, err := os.Stat(h.path(name))
	return err == nil
}

// sysctl is a value by its dotted name.
func (h host) sysctl(name string) (string, error) {
	return h.read("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
}

// version is a kernel's major and minor number.
type version struct{ major, minor int }

// floor is the oldest kernel that SCON runs on: all that it needs is there
// (redirect_peer came with 5.10).
var floor = version{5, 15}

// tcxSince is the kernel that has tcx links.
var tcxSince = version{6, 6}

func (v version) before(w version) bool {
	return v.major < w.major || v.major == w.major && v.minor < w.minor
}

func (v version) String() string { return fmt.Sprintf("%d.%d", v.major, v.minor) }

// parseVersion reads the first two numbers of a release such as
// 6.1.0-18-cloud-amd64 or 6.6+.
func parseVersion(release string) (version, error) {
	major, rest, _ := strings.Cut(release, ".")
	minor := rest
	if end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		minor = rest[:end]
	}
	var v version
	var err error
	if v.major, err = strconv.Atoi(major); err == nil {
		v.minor, err = strconv.Atoi(minor)
	}
	if err != nil {
		return version{}, fmt.Errorf("read kernel release %q: no MAJOR.MINOR", release)
	}
	return v, nil
}
