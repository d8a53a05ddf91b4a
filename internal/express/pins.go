package express

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/state"
)

// BPFFS is where the BPF file system is mounted.
const BPFFS = "/sys/fs/bpf"

const (
	// pinRoot holds one directory of pins for each network namespace.
	pinRoot = BPFFS + "/scon"
	// mountMark is a directory whose presence means that SCON mounted the
	// bpffs.
	mountMark = pinRoot + "/mounted"
)

// pins is the pin directory of this network namespace, locked. Two daemons in
// one namespace would fight over its devices, even with different state
// directories.
type pins struct {
	dir   string
	lock  *os.File
	fresh bool // no earlier daemon left anything
}

func openPins() (_ *pins, err error) {
	mounted, err := datapath.MountBPFFS(BPFFS)
	if err != nil {
		return nil, err
	}
	p := &pins{}
	defer func() {
		if err != nil {
			p.abandon(mounted)
		}
	}()
	inode, err := netns.Inode("")
	if err != nil {
		return nil, err
	}
	p.dir = pinDir(inode)
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the pin directory: %w", err)
	}
	if p.lock, err = lockPins(p.dir, state.Dying); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			_, runs := Pinned("")
			return nil, fmt.Errorf("%w: %s", state.ErrLocked, runs)
		}
		return nil, fmt.Errorf("locking this network namespace: %w", err)
	}
	if err := CleanAbandoned(); err != nil {
		return nil, err
	}
	found, err := os.ReadDir(p.dir)
	if err != nil {
		return nil, fmt.Errorf("search for pins of an earlier daemon: %w", err)
	}
	p.fresh = len(found) == 0
	if mounted {
		if err := os.Mkdir(mountMark, 0o700); err != nil {
			return nil, fmt.Errorf("marking the bpffs as mounted by SCON: %w", err)
		}
	}
	return p, nil
}

// abandon undoes openPins without a file descriptor, since none may be left.
// What is in use stays, since it is not empty.
func (p *pins) abandon(mounted bool) {
	if p.lock != nil {
		p.unlock()
		os.Remove(p.dir)
	}
	if mounted {
		os.Remove(p.dir)
		os.Remove(mountMark)
		os.Remove(pinRoot)
		_ = unix.Unmount(BPFFS, 0)
	}
}

// pinDir returns that of a network namespace.
func pinDir(inode uint64) string {
	return filepath.Join(pinRoot, strconv.FormatUint(inode, 10))
}

// lockPins locks a pin directory until the file is closed. The error wraps
// EWOULDBLOCK if a living daemon holds the lock, or one has just removed the
// directory.
func lockPins(dir string, patience time.Duration) (_ *os.File, err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if err := state.Flock(f, patience); err != nil {
		return nil, err
	}
	held, err := f.Stat()
	if err != nil {
		return nil, err
	}
	named, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(held, named) {
		return nil, unix.EWOULDBLOCK
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (p *pins) unlock() { p.lock.Close() }

// remove detaches every hook and removes every pin of this namespace, and the
// bpffs if SCON mounted it and it is empty.
func (p *pins) remove() error {
	if err := datapath.Remove(p.dir); err != nil {
		return err
	}
	p.lock.Close() // or the bpffs is busy
	return removeRoot()
}

// removeRoot removes what the pin directories of all namespaces share, if the
// last of them is gone.
func removeRoot() error {
	_, err := os.Stat(mountMark)
	mounted := err == nil
	rest, err := os.ReadDir(pinRoot)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("search for pins of other namespaces: %w", err)
	}
	if len(rest) > 1 || len(rest) == 1 && !mounted {
		return nil // other namespaces have a SCON, too
	}
	os.Remove(mountMark)
	if err := os.Remove(pinRoot); err != nil {
		// Another daemon has just started; it unmounts the bpffs.
		if mounted {
			return os.Mkdir(mountMark, 0o700)
		}
		return nil
	}
	others, err := os.ReadDir(BPFFS)
	others = slices.DeleteFunc(others, preloaded)
	if err != nil || !mounted || len(others) > 0 {
		return err
	}
	if err := unix.Unmount(BPFFS, 0); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("unmounting the bpffs: %w", err)
	}
	return nil
}

// Hooked counts the hooks that are pinned for a network namespace, two for
// each device. Without tcx, a recorded qdisc stands for both of its device.
// The number grows while a daemon starts, and shrinks while it ends.
func Hooked(namespace string) (n int, err error) {
	inode, err := netns.Inode(namespace)
	if err != nil {
		return 0, err
	}
	pins, err := filepath.Glob(filepath.Join(pinDir(inode), "*_*"))
	for _, path := range pins {
		n++
		if strings.HasPrefix(filepath.Base(path), "qdisc") {
			n++
		}
	}
	return n, err
}

// Pinned describes what is pinned for a network namespace, for the user; nothing if there is
// none, or it cannot be read. runs describes the daemon that has pinned it, if that lives.
func Pinned(namespace string) (left []string, runs string) {
	inode, err := netns.Inode(namespace)
	if err != nil {
		return nil, ""
	}
	dir := pinDir(inode)
	if state.Flocked(dir) {
		var f unix.Stat_t
		_ = unix.Stat(dir, &f)
		locks, _ := os.ReadFile("/proc/locks")
		holder, _, known := strings.Cut(string(locks), fmt.Sprintf(" %02x:%02x:%d ", unix.Major(f.Dev), unix.Minor(f.Dev), f.Ino))
		if holder = holder[strings.LastIndexByte(holder, ' ')+1:]; !known {
			holder = "PID"
		}
		return nil, "one in this network namespace has another state directory, or its own was removed: ask it by its --socket or, in a container, by 'docker exec' or 'podman exec'; 'kill " + holder + "' ends it"
	}
	pins, _ := os.ReadDir(dir)
	hooked, err := Hooked(namespace)
	if err != nil || len(pins) == 0 {
		return nil, ""
	}
	return []string{fmt.Sprintf("%d pins in %s with %d hooks, which let every packet take the kernel's path", len(pins), dir, hooked)}, ""
}

// CleanAbandoned removes the pins of daemons that died together with their
// namespaces: all of their hooks have lost their devices.
func CleanAbandoned() error {
	dirs, err := filepath.Glob(filepath.Join(pinRoot, "[0-9]*"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := cleanAbandoned(dir); err != nil {
			return fmt.Errorf("removing the pins of a namespace that is gone: %w", err)
		}
	}
	return removeRoot()
}

// cleanAbandoned leaves living daemons alone: their devices may return before
// they end.
func cleanAbandoned(dir string) error {
	lock, err := lockPins(dir, 0)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if !datapath.Abandoned(dir) {
		return nil
	}
	return os.RemoveAll(dir)
}

// preloaded reports whether the kernel itself has put a file into the bpffs.
func preloaded(e fs.DirEntry) bool { return strings.HasSuffix(e.Name(), ".debug") }

// Clean removes everything that a dead daemon left in this namespace. It fails
// while one is alive.
func Clean(o Options) error {
	p, err := openPins()
	if err != nil {
		return err
	}
	defer p.unlock()
	if !p.fresh { // programs of a daemon that has just died forward until then
		time.Sleep(silenceLimit + restTime)
	}
	l := newLiberal(false, p.dir)
	return errors.Join(l.putBack(), p.remove(), state.Express.Remove(o.StateDir))
}
