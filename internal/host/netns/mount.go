package netns

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrNoBeneath is wrapped when the kernel cannot mount beneath a mount (before
// Linux 6.5).
var ErrNoBeneath = errors.New("this kernel cannot mount beneath a mount")

// moveMountBeneath is MOVE_MOUNT_BENEATH.
const moveMountBeneath = 0x200

// Replace makes a path at which a namespace is mounted refer to another one.
// At no moment does it refer to none: the other one is mounted beneath, then
// the mount on top is removed.
func Replace(path string, by *os.File) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, FdPath(by), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("clone the mount of a namespace: %w", err)
	}
	defer unix.Close(tree)
	err = unix.MoveMount(tree, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH|moveMountBeneath)
	if errors.Is(err, unix.EINVAL) && !HasBeneath() {
		return ErrNoBeneath
	}
	if err != nil {
		return fmt.Errorf("mount a namespace beneath %s: %w", path, err)
	}
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount what is above a namespace at %s: %w", path, err)
	}
	return nil
}

// HasBeneath reports whether the kernel has MOVE_MOUNT_BENEATH. An older one
// rejects the flag before it checks file descriptors.
func HasBeneath() bool {
	err := unix.MoveMount(-1, "", -1, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH|moveMountBeneath)
	return !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS)
}

// Owner returns the inode of the user namespace that owns a network namespace.
func Owner(ns *os.File) (uint64, error) {
	fd, err := unix.IoctlRetInt(int(ns.Fd()), unix.NS_GET_USERNS)
	if err != nil {
		return 0, fmt.Errorf("find the user namespace of %s: %w", ns.Name(), err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("find the user namespace of %s: %w", ns.Name(), err)
	}
	return st.Ino, nil
}
