package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ErrNoBeneath is wrapped when the kernel cannot mount beneath a mount: it is
// older than 6.5.
var ErrNoBeneath = errors.New("this kernel cannot mount beneath a mount")

// moveMountBeneath is MOVE_MOUNT_BENEATH.
const moveMountBeneath = 0x200

// Replace lets a path, at which a namespace is mounted, stand for another one,
// which has a name. At no moment does it stand for none: the other is mounted
// beneath, then what is on top of it goes.
func Replace(path, name string) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, Path(name), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("namespace %q: clone its mount: %w", name, err)
	}
	defer unix.Close(tree)
	err = unix.MoveMount(tree, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH|moveMountBeneath)
	if errors.Is(err, unix.EINVAL) && !HasBeneath() {
		return fmt.Errorf("namespace %q: %w", name, ErrNoBeneath)
	}
	if err != nil {
		return fmt.Errorf("namespace %q: mount it beneath %s: %w", name, path, err)
	}
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("namespace %q: unmount what is above it at %s: %w", name, path, err)
	}
	return nil
}

// HasBeneath tells whether the kernel has MOVE_MOUNT_BENEATH: an older one
// refuses the flag before it looks at file descriptors.
func HasBeneath() bool {
	err := unix.MoveMount(-1, "", -1, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH|moveMountBeneath)
	return !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS)
}

// Owner is the number of the user namespace that a network namespace belongs
// to, in whose eyes its administrators are.
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

// A Factory makes namespaces on a thread of its own. One goroutine may use it.
type Factory struct {
	names chan string
	done  chan error
}

// NewFactory starts one; Close ends it.
func NewFactory() *Factory {
	f := &Factory{names: make(chan string), done: make(chan error)}
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends here
		for name := range f.names {
			f.done <- f.make(name)
		}
	}()
	return f
}

// Create is Create without a new thread.
func (f *Factory) Create(name string) error {
	f.names <- name
	return <-f.done
}

func (f *Factory) make(name string) error {
	return makeName(name, func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		return nameIt(name)
	})
}

// Close ends the thread.
func (f *Factory) Close() { close(f.names) }
