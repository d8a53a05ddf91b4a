package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Create creates a network namespace with a name for ip(8). The error wraps
// ErrExist if the name is taken.
func Create(name string) error {
	return makeName(name, func() error {
		return Scratch(func() error { return nameIt(name) })
	})
}

// Attach names an existing namespace, as "ip netns attach" does. The error
// wraps ErrExist if the name is taken. It mounts from within the namespace:
// where /run is shared, Linux 6.12 cannot remove a mount that is a copy of one that Replace has
// removed.
func Attach(name, path string) error {
	return makeName(name, func() error { return Do(path, func() error { return nameIt(name) }) })
}

// nameIt mounts the namespace of the calling thread at a name.
func nameIt(name string) error {
	return unix.Mount(Path(""), Path(name), "none", unix.MS_BIND, "")
}

// makeName creates a name and calls mount to fill it.
func makeName(name string, mount func() error) (err error) {
	if err := checkName(name); err != nil {
		return err
	}
	if err := shareRunDir(); err != nil {
		return fmt.Errorf("create namespace %q: %w", name, err)
	}
	f, err := os.OpenFile(Path(name), os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create namespace %q: %w", name, ErrExist)
	}
	if err != nil {
		return fmt.Errorf("create namespace %q: %w", name, err)
	}
	f.Close()
	if err := mount(); err != nil {
		os.Remove(Path(name))
		return fmt.Errorf("create namespace %q: %w", name, err)
	}
	return nil
}

// Delete removes a name from ip(8)'s list. The namespace ends with the last
// process, handle or name that refers to it.
func Delete(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	err := unix.Unmount(Path(name), unix.MNT_DETACH)
	// EINVAL: a file without a mount, left by an interrupted creation.
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete namespace %q: unmount: %w", name, err)
	}
	err = os.Remove(Path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete namespace %q: %w", name, ErrNotExist)
	}
	if err != nil {
		return fmt.Errorf("delete namespace %q: %w", name, err)
	}
	return nil
}

// checkName rejects names that would not be a file in runDir.
func checkName(name string) error {
	if name == "" || name == "." || name == ".." || name != filepath.Base(name) {
		return fmt.Errorf("namespace name %q: want a bare name", name)
	}
	return nil
}

// shareRunDir makes runDir a shared mount as ip(8) does, so that a name that
// is removed here is also removed in every other mount namespace and does not
// keep the network namespace alive there.
func shareRunDir() error {
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return err
	}
	share := func() error {
		return unix.Mount("", runDir, "none", unix.MS_SHARED|unix.MS_REC, "")
	}
	err := share()
	if errors.Is(err, unix.EINVAL) { // not a mount point yet
		if err := unix.Mount(runDir, runDir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("bind mount %s: %w", runDir, err)
		}
		err = share()
	}
	if err != nil {
		return fmt.Errorf("share mount %s: %w", runDir, err)
	}
	return nil
}
