package discover

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
)

// A sysfs shows the devices of the namespace in which it was mounted,
// whichever process reads it. So devices are recognised by their ifindex and
// their peer's, which is their own again if they have none.

// Device is the sysfs directory of a device.
type Device struct{ dir *os.File }

// OpenDevice opens a device of this namespace. peer is its own ifindex, or, of a tunnel of
// IP, that of the device below it, 0 for any.
func OpenDevice(name string, index, peer int) (*Device, error) {
	return openDevice(place{name: name, index: index, peer: peer})
}

// Close closes the directory.
func (d *Device) Close() error { return d.dir.Close() }

// Steers reports whether packets that the device receives may be passed to
// another CPU (receive packet steering). Its queues are numbered from 0 on.
func (d *Device) Steers() (bool, error) {
	for queue := 0; ; queue++ {
		cpus, err := readBeneath(d.dir, fmt.Sprintf("queues/rx-%d/rps_cpus", queue))
		if errors.Is(err, fs.ErrNotExist) && (queue > 0 || d.has("queues")) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if strings.Trim(cpus, "0,\n") != "" {
			return true, nil
		}
	}
}

// has reports whether a file is there.
func (d *Device) has(name string) bool {
	return unix.Faccessat(int(d.dir.Fd()), name, unix.F_OK, 0) == nil
}

// place says where to find a device.
type place struct {
	namespace   string // path, "" for this one
	pid         int    // of a process in it, 0 if there is none
	name        string // "" if it is not known
	index, peer int
}

// openDevice searches this machine's sysfs or that of the process. Failing
// that it mounts one, which takes CAP_SYS_ADMIN.
func openDevice(p place) (*Device, error) {
	tree := "/sys"
	if p.pid != 0 {
		tree = fmt.Sprintf("/proc/%d/root/sys", p.pid)
	}
	if d, err := p.in(tree); err == nil {
		return d, nil
	}
	mount, err := netns.MountSysfs(p.namespace, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return nil, err
	}
	defer mount.Close()
	return p.in(fmt.Sprintf("/proc/self/fd/%d", mount.Fd()))
}

// in finds the device in a mounted sysfs.
func (p place) in(tree string) (*Device, error) {
	class, err := openIn(nil, tree+"/class/net", unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer class.Close()
	names := []string{p.name}
	if p.name == "" {
		if names, err = class.Readdirnames(-1); err != nil {
			return nil, err
		}
	}
	for _, name := range names {
		dir, err := openIn(class, name, unix.O_DIRECTORY)
		if err != nil {
			continue
		}
		if number(dir, "ifindex") == p.index && number(dir, "iflink") == p.peer {
			return &Device{dir}, nil
		}
		dir.Close()
	}
	return nil, fmt.Errorf("device %d in %s: %w", p.index, tree, fs.ErrNotExist)
}

// errNoSysfs means that another file system is mounted where a sysfs belongs.
var errNoSysfs = errors.New("not in a sysfs")

// openIn opens a file of sysfs, in a directory of it or by its path. A
// container's root may have anything in its place, a pipe or a device: it is
// checked before it is opened.
func openIn(dir *os.File, name string, flags int) (*os.File, error) {
	at := unix.AT_FDCWD
	if dir != nil {
		at = int(dir.Fd())
	}
	found, err := unix.Openat(at, name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("search for %s: %w", name, err)
	}
	defer unix.Close(found)
	var st unix.Statfs_t
	if err := unix.Fstatfs(found, &st); err != nil || st.Type != unix.SYSFS_MAGIC {
		return nil, fmt.Errorf("search for %s: %w", name, cmp.Or(err, errNoSysfs))
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", found), flags|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// readIn reads a file of sysfs, which is never longer than a page.
func readIn(dir *os.File, name string) (string, error) {
	f, err := openIn(dir, name, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b := make([]byte, os.Getpagesize())
	n, err := unix.Read(int(f.Fd()), b)
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", name, err)
	}
	return string(b[:n]), nil
}

// readBeneath reads a file beneath a directory of sysfs, and of the same mount: it is one
// of sysfs, too. The filter of RestrictSUIDSGID= in the service's unit forbids openat2.
func readBeneath(dir *os.File, name string) (string, error) {
	fd, err := unix.Openat2(int(dir.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err == unix.ENOSYS {
		return readIn(dir, name)
	}
	if err != nil {
		return "", fmt.Errorf("opening %s: %w", name, err)
	}
	defer unix.Close(fd)
	b := make([]byte, os.Getpagesize())
	n, err := unix.Read(fd, b)
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", name, err)
	}
	return string(b[:n]), nil
}

// number reads a number from a file, -1 if there is none.
func number(dir *os.File, name string) int {
	text, err := readIn(dir, name)
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return -1
	}
	return n
}
