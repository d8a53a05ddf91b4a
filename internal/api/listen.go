package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listen makes the unix socket at path with mode 0660, owned by root and, unless group is
// "", by that group, whose members may read: see Serve. It replaces a stale socket, as a
// crash leaves it; if a process serves the socket, the error is ErrInUse.
//
// The socket is made with mode 0600, and gets its owner before the others may connect.
func Listen(path, group string) (net.Listener, error) {
	if err := checkStale(path); err != nil {
		return nil, err
	}
	gid := os.Getgid()
	if group != "" {
		var err error
		if gid, err = lookupGroup(group); err != nil {
			return nil, fmt.Errorf("listen on %s: %w", path, err)
		}
	}

	if err := RemoveStale(path); err != nil {
		return nil, err
	}
	private := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }) // bind's mode
		return errors.Join(err, failed)
	}}
	l, err := private.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	s := &listener{UnixListener: l.(*net.UnixListener), path: path}
	s.SetUnlinkOnClose(false)
	if s.inode, err = os.Lstat(path); err == nil {
		err = publish(path, gid)
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return s, nil
}

// publish sets the socket's owner and mode.
func publish(path string, gid int) error {
	if err := os.Chown(path, -1, gid); err != nil {
		return fmt.Errorf("set the group: %w", err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		return fmt.Errorf("set the mode: %w", err)
	}
	return nil
}

// checkStale returns an error unless path does not exist, or is a socket that no process
// serves. One whose queue is full, and one of another type, are served.
func checkStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("stat socket %s: %w", path, err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("listen on %s: the file exists and is not a socket; remove it, or choose another path", path)
	}
	conn, err := net.Dial("unix", path)
	switch {
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("listen on %s: a socket is there, and you may not ask whether a process serves it; use sudo, or choose another path", path)
	case err == nil:
		conn.Close()
	}
	return fmt.Errorf("listen on %s: %w there; stop it ('scon down' stops SCON), or choose another path", path, ErrInUse)
}

// RemoveStale removes the socket that a killed process has left at path. What else is there
// stays.
func RemoveStale(path string) error {
	if checkStale(path) != nil {
		return nil // a process serves it, or it is another file
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the stale socket %s: %w", path, err)
	}
	return nil
}

// CheckGroup refuses a group that Listen would refuse.
func CheckGroup(name string) error {
	if name == "" {
		return nil
	}
	_, err := lookupGroup(name)
	return err
}

func lookupGroup(name string) (gid int, err error) {
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, fmt.Errorf("socket_group %q: no such group; make it, or change the setting", name)
	}
	return strconv.Atoi(g.Gid)
}

// listener has the socket's final path, and removes the socket when it is closed.
type listener struct {
	*net.UnixListener
	path  string
	inode fs.FileInfo
}

// Addr returns the path that clients use.
func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Accept waits for the next connection. Its errors name the path that clients use.
func (l *listener) Accept() (net.Conn, error) {
	conn, err := l.UnixListener.Accept()
	if failed := (*net.OpError)(nil); errors.As(err, &failed) {
		failed.Addr = l.Addr()
	}
	return conn, err
}

func (l *listener) Close() error {
	if there, err := os.Lstat(l.path); err == nil && os.SameFile(there, l.inode) { // not another process's
		os.Remove(l.path)
	}
	return l.UnixListener.Close()
}
