package peer

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// receiveBuffer of a UDP server in bytes; it bounds the backlog of a fast sender.
const receiveBuffer = 8 << 20

// errClosed means that the other end closed the connection.
var errClosed = errors.New("connection closed by the other end")

// socket is a blocking socket of IPv4 or IPv6. It uses raw system calls, which Go's
// scheduler does not see; otherwise the scheduler would hand the thread's work to
// another thread at every wait.
type socket int

func newSocket(proto string, address netip.Addr) (socket, error) {
	family, kind := unix.AF_INET, unix.SOCK_STREAM
	if address.Is6() {
		family = unix.AF_INET6
	}
	if proto == "udp" {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open a %s socket: %w", proto, err)
	}
	return socket(fd), nil
}

// listen opens a socket on a free port of an address. A TCP socket listens for
// connections, a UDP socket is ready to receive.
func listen(proto string, address netip.Addr) (s socket, port uint16, err error) {
	s, err = newSocket(proto, address)
	if err != nil {
		return -1, 0, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if proto == "udp" { // TCP sizes its own buffer
		if err := unix.SetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer); err != nil {
			return -1, 0, fmt.Errorf("set the receive buffer: %w", err)
		}
	}
	var at unix.Sockaddr = &unix.SockaddrInet6{Addr: address.As16()}
	if address.Is4() {
		at = &unix.SockaddrInet4{Addr: address.As4()}
	}
	if err := unix.Bind(int(s), at); err != nil {
		return -1, 0, fmt.Errorf("bind to %s: %w", address, err)
	}
	if proto == "tcp" {
		if err := unix.Listen(int(s), unix.SOMAXCONN); err != nil {
			return -1, 0, fmt.Errorf("listen on %s: %w", address, err)
		}
	}
	name, err := unix.Getsockname(int(s))
	if err != nil {
		return -1, 0, fmt.Errorf("read the port: %w", err)
	}
	if name, ok := name.(*unix.SockaddrInet6); ok {
		return s, uint16(name.Port), nil
	}
	return s, uint16(name.(*unix.SockaddrInet4).Port), nil
}

// dial opens a socket to a server; TCP with TCP_NODELAY.
func dial(proto string, server netip.AddrPort) (socket, error) {
	s, err := newSocket(proto, server.Addr())
	if err != nil {
		return -1, err
	}
	if proto == "tcp" {
		if err := s.noDelay(); err != nil {
			s.close()
			return -1, err
		}
	}
	if err := s.connect(rawAddress(server)); err != nil {
		s.close()
		return -1, fmt.Errorf("connect to %s: %w", server, err)
	}
	return s, nil
}

// sockaddr is an address in the kernel's format. For IPv4 only the beginning of raw
// is used.
type sockaddr struct {
	raw    unix.RawSockaddrInet6
	length uint32
}

func rawAddress(a netip.AddrPort) *sockaddr {
	s := &sockaddr{unix.RawSockaddrInet6{Family: unix.AF_INET6, Addr: a.Addr().As16()}, unix.SizeofSockaddrInet6}
	port := &s.raw.Port // same offset in both families
	if a.Addr().Is4() {
		raw := (*unix.RawSockaddrInet4)(unsafe.Pointer(&s.raw))
		*raw = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: a.Addr().As4()}
		s.length = unix.SizeofSockaddrInet4
	}
	*(*[2]byte)(unsafe.Pointer(port)) = [2]byte{byte(a.Port() >> 8), byte(a.Port())}
	return s
}

func (s socket) noDelay() error {
	if err := unix.SetsockoptInt(int(s), unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return fmt.Errorf("set TCP_NODELAY: %w", err)
	}
	return nil
}

// setTimeout bounds every later receive; 0 means no limit.
func (s socket) setTimeout(d time.Duration) error {
	timeout := unix.NsecToTimeval(d.Nanoseconds())
	if err := unix.SetsockoptTimeval(int(s), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return fmt.Errorf("set the receive timeout: %w", err)
	}
	return nil
}

func (s socket) connect(server *sockaddr) error {
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(s),
			uintptr(unsafe.Pointer(&server.raw)), uintptr(server.length))
		switch errno {
		case 0, unix.EISCONN: // EISCONN: the interrupted call succeeded
			return nil
		case unix.EINTR, unix.EALREADY:
		default:
			return errno
		}
	}
}

// accept waits for a connection and returns it with TCP_NODELAY set.
func (s socket) accept() (socket, error) {
	for {
		fd, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(s), 0, 0, unix.SOCK_CLOEXEC, 0, 0)
		switch errno {
		case 0:
			return socket(fd), socket(fd).noDelay()
		case unix.EINTR:
		default:
			return -1, fmt.Errorf("accept: %w", errno)
		}
	}
}

// answerOnlyFirst connects a UDP server to the sender of the next message, which
// stays in the queue.
func (s socket) answerOnlyFirst() error {
	from := sockaddr{length: unix.SizeofSockaddrInet6}
	var b [1]byte
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(s), uintptr(unsafe.Pointer(&b[0])), 1,
			unix.MSG_PEEK, uintptr(unsafe.Pointer(&from.raw)), uintptr(unsafe.Pointer(&from.length)))
		switch errno {
		case 0:
			return s.connect(&from)
		case unix.EINTR:
		default:
			return fmt.Errorf("wait for the first message: %w", errno)
		}
	}
}

// send writes one message. A partial write is an error, since a blocking socket
// makes none.
func (s socket) send(message []byte) error {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s),
			uintptr(unsafe.Pointer(&message[0])), uintptr(len(message)), unix.MSG_NOSIGNAL, 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			return fmt.Errorf("send: %w", errno)
		case int(n) != len(message):
			return fmt.Errorf("send: %d of %d bytes were written", n, len(message))
		default:
			return nil
		}
	}
}

// receive reads at least one byte of the available data; errClosed at the end of a
// TCP connection.
func (s socket) receive(buffer []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(s),
			uintptr(unsafe.Pointer(&buffer[0])), uintptr(len(buffer)), 0, 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			return 0, fmt.Errorf("receive: %w", errno)
		case n == 0:
			return 0, errClosed
		default:
			return int(n), nil
		}
	}
}

// receiveAll fills the whole message.
func (s socket) receiveAll(message []byte) error {
	for got := 0; got < len(message); {
		n, err := s.receive(message[got:])
		if err != nil {
			return err
		}
		got += n
	}
	return nil
}

func (s socket) close() { unix.RawSyscall(unix.SYS_CLOSE, uintptr(s), 0, 0) }
