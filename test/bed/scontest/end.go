package scontest

import (
	"errors"
	"net"
	"testing"
	"time"
)

// CloseWrite shuts down one direction of a TCP connection.
func CloseWrite(c net.Conn) error { return c.(*net.TCPConn).CloseWrite() }

// Reset ends a connection with a RST.
func Reset(c net.Conn) error {
	if err := c.(*net.TCPConn).SetLinger(0); err != nil {
		return err
	}
	return c.Close()
}

// WantEnd fails unless the next read of a connection returns no bytes and the error
// want.
func WantEnd(t *testing.T, c net.Conn, want error) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(Patience))
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, want) {
		t.Errorf("read %d bytes, %v; want %v", n, err, want)
	}
}
