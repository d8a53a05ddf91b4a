// Package netns enters, creates and removes network namespaces. No other
// package changes the namespace of a thread.
//
// Namespaces are entered by file descriptor, without mounts: `ip netns exec`
// mounts /sys again, which hides a bpffs and every pinned object.
package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// runDir is where ip(8) keeps the named namespaces.
const runDir = "/run/netns"

var (
	// ErrNotExist is wrapped when no namespace has that name or path.
	ErrNotExist = errors.New("no such namespace")
	// ErrNotNetns is wrapped when the path is not a network namespace.
	ErrNotNetns = errors.New("not a network namespace")
	// ErrExist is wrapped when a namespace of that name exists.
	ErrExist = errors.New("namespace exists")
)

// Path returns the file of a namespace: a bare name is one of ip(8)'s,
// anything with a slash is a path, and "" is the namespace of the calling
// thread.
func Path(nameOrPath string) string {
	switch {
	case nameOrPath == "":
		return "/proc/thread-self/ns/net"
	case strings.Contains(nameOrPath, "/"):
		return nameOrPath
	default:
		return filepath.Join(runDir, nameOrPath)
	}
}

// Open returns a handle that keeps the namespace alive until it is closed. The
// error wraps ErrNotExist or ErrNotNetns.
func Open(nameOrPath string) (*os.File, error) {
	f, err := os.OpenFile(Path(nameOrPath), os.O_RDONLY|unix.O_NONBLOCK, 0) // it may be a FIFO
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("namespace %q: %w; \"ip netns list\" shows them", nameOrPath, ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("open namespace %q: %w", nameOrPath, err)
	}
	kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		f.Close()
		return nil, fmt.Errorf("namespace %q: %s is %w", nameOrPath, f.Name(), ErrNotNetns)
	}
	return f, nil
}

// Inode returns the number that identifies a namespace: it is the same for all
// handles of one namespace.
func Inode(nameOrPath string) (uint64, error) {
	f, err := Open(nameOrPath)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, fmt.Errorf("read namespace %q: %w", nameOrPath, err)
	}
	return st.Ino, nil
}

// Enter moves the calling thread into a namespace for good. The caller has
// locked the goroutine with runtime.LockOSThread. Other threads stay where
// they are, so a process that wants to move as a whole executes itself again
// afterwards.
func Enter(nameOrPath string) error {
	f, err := Open(nameOrPath)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter namespace %q: %w", nameOrPath, err)
	}
	return nil
}

// Do calls fn on a thread in a namespace, and returns its error. Sockets that
// fn opens and processes that it starts belong to the namespace; goroutines
// that it starts run elsewhere. Calls nest.
//
// If leaving the namespace fails, the thread is never unlocked: it ends with
// the calling goroutine and never runs others in the wrong namespace.
func Do(nameOrPath string, fn func() error) error {
	return visit(fmt.Sprintf("namespace %q", nameOrPath), func() error { return Enter(nameOrPath) }, fn)
}

// visit calls fn on a thread that has entered a namespace, and leaves the
// namespace again.
func visit(what string, enter, fn func() error) (err error) {
	runtime.LockOSThread()
	home, err := Open("")
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer home.Close()
	if err := enter(); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer func() {
		if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
			err = errors.Join(err, fmt.Errorf("leave %s: %w", what, back))
			return
		}
		runtime.UnlockOSThread()
	}()
	return fn()
}
