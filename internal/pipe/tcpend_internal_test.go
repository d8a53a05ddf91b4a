package pipe

import (
	"net"
	"syscall"
	"testing"
)

// The program reads the same addresses of a socket as the system calls, in both families.
func TestNamesOfSockets(t *testing.T) {
	ends, err := newTCPEnds()
	if err != nil {
		t.Fatal(err)
	}
	defer ends.close()
	for _, network := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0"} {
		l, err := net.Listen("tcp", network)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if _, _, _, err := ends.of(fdOf(t, l.(*net.TCPListener))); err == nil {
			t.Errorf("%s: a listening socket has a connection", network)
		}
		addrs := []string{l.Addr().String()}
		if network == "[::]:0" { // IPv4 at an IPv6 socket
			_, port, _ := net.SplitHostPort(addrs[0])
			addrs = []string{net.JoinHostPort("127.0.0.1", port), net.JoinHostPort("::1", port)}
		}
		for _, addr := range addrs {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			s, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			for _, end := range []net.Conn{c, s} {
				_, local, peer, err := ends.of(fdOf(t, end.(*net.TCPConn)))
				wantLocal, wantPeer, wantErr := tcpNames(fdOf(t, end.(*net.TCPConn)))
				if err != nil || wantErr != nil || local != wantLocal || peer != wantPeer {
					t.Errorf("%v %v %v, want %v %v %v", local, peer, err, wantLocal, wantPeer, wantErr)
				}
			}
		}
	}
}

func fdOf(t *testing.T, c interface {
	SyscallConn() (syscall.RawConn, error)
}) (fd int) {
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(f uintptr) { fd = int(f) })
	return fd
}
