package scontest

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Socket calls fn with the file descriptor of a connection's end.
func Socket(t *testing.T, c net.Conn, fn func(fd int) error) {
	t.Helper()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	control := raw.Control(func(fd uintptr) { err = fn(int(fd)) })
	if err := errors.Join(control, err); err != nil {
		t.Fatal(err)
	}
}

// SetOption sets an option of a socket.
func SetOption(t *testing.T, c net.Conn, level, name, value int) {
	t.Helper()
	Socket(t, c, func(fd int) error { return unix.SetsockoptInt(fd, level, name, value) })
}

// Option reads an option of a socket.
func Option(t *testing.T, c net.Conn, level, name int) (value int) {
	t.Helper()
	Socket(t, c, func(fd int) (err error) {
		value, err = unix.GetsockoptInt(fd, level, name)
		return err
	})
	return value
}
