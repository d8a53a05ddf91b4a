// Package netns enters, makes and removes network namespaces. It is the only
// place of SCON that changes the namespace of a thread.
//
// Namespaces are entered by file descriptor and nothing is mounted on the way:
// `ip netns exec` mounts /sys anew, which hides a bpffs and with it every
// pinned object.
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
	// ErrNotExist is wrapped when there is no namespace of that name or path.
	ErrNotExist = errors.New("no such namespace")
	// ErrNotNetns is wrapped when the path is of something else.
	ErrNotNetns = errors.New("not a network namespace")
	// ErrExist is wrapped when a namespace of that name is already there.
	ErrExist = errors.New("namespace exists")
)

// Path returns the file that stands for a namespace: a bare name is one of
// ip(8)'s, anything with a slash is a path, and "" is the namespace of the
// calling thread.
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

// Open returns a handle to a namespace, which keeps the namespace alive until
// it is closed. The error wraps ErrNotExist or ErrNotNetns.
func Open(nameOrPath string) (*os.File, error) {
	f, err := os.Open(Path(nameOrPath))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("namespace %q: %w; \"ip netns list\" shows them", nameOrPath, ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("namespace %q: %w", nameOrPath, err)
	}
	kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		f.Close()
		return nil, fmt.Errorf("namespace %q: %s is %w", nameOrPath, f.Name(), ErrNotNetns)
	}
	return f, nil
}

// Inode returns the number that tells namespaces apart: two handles of one
// namespace have the same.
func Inode(nameOrPath string) (uint64, error) {
	f, err := Open(nameOrPath)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, fmt.Errorf("namespace %q: stat: %w", nameOrPath, err)
	}
	return st.Ino, nil
}

// Enter moves the calling thread into a namespace for good. The caller holds
// the thread with runtime.LockOSThread; other threads stay where they are, so a
// process that wants to be there as a whole executes itself anew afterwards.
func Enter(nameOrPath string) error {
	f, err := Open(nameOrPath)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("namespace %q: enter: %w", nameOrPath, err)
	}
	return nil
}

// Do calls fn on a thread that is in a namespace, and returns its error.
// Sockets that fn opens and processes that it starts belong to the namespace;
// goroutines that it starts run elsewhere. Calls nest.
//
// Should the way back fail, the thread is never unlocked: it ends with the
// calling goroutine instead of serving others in the wrong namespace.
func Do(nameOrPath string, fn func() error) error {
	return visit(fmt.Sprintf("namespace %q", nameOrPath), func() error { return Enter(nameOrPath) }, fn)
}

// visit calls fn on a thread that has entered a namespace, and leaves it again.
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
