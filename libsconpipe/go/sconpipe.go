//go:build cgo

package sconpipe

/*
#cgo CFLAGS: -std=gnu11 -D_GNU_SOURCE -O2 -Wall -pthread -I${SRCDIR}/../include
#cgo LDFLAGS: -pthread
#include <netinet/in.h>
#include <sconpipe.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"unsafe"
)

// Engine copies a connection's bytes.
type Engine int

// The engines; see docs/pipe.md.
const (
	Sealed Engine = C.PD_ENGINE_SEALED
	BPF    Engine = C.PD_ENGINE_BPF
	Copier Engine = C.PD_ENGINE_COPIER
	Unix   Engine = C.PD_ENGINE_UNIX
)

// Config configures Dial and Listen.
type Config struct {
	// Engines that are accepted; empty: the library's default.
	Engines []Engine
}

// Addr is a name in the pipe: an address and a TCP port.
type Addr netip.AddrPort

// Network returns "pipe".
func (Addr) Network() string { return "pipe" }

func (a Addr) String() string { return netip.AddrPort(a).String() }

// Dial connects to a name, such as "172.17.0.2:7000".
func Dial(address string) (*Conn, error) { return Config{}.Dial(address) }

// Listen binds a name, such as "0.0.0.0:7000"; port 0 chooses a free one.
func Listen(address string) (*Listener, error) { return Config{}.Listen(address) }

// Dial connects to a name. It returns once the connection is in the listener's backlog.
func (c Config) Dial(address string) (*Conn, error) {
	name, err := parse(address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "pipe", Err: err}
	}
	s, err := c.open()
	if err == nil {
		to := sockaddr(name)
		var n C.int
		if n, err = C.pd_connect(s.sid, &to, C.sizeof_struct_sockaddr_in); n == 0 { // otherwise errno may stem from an inner call
			err = s.poll()
		}
		if err != nil {
			C.pd_close(s.sid)
		}
	}
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "pipe", Addr: Addr(name), Err: err}
	}
	return newConn(s), nil
}

// Listen binds a name.
func (c Config) Listen(address string) (*Listener, error) {
	name, err := parse(address)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "pipe", Err: err}
	}
	s, err := c.open()
	if err == nil {
		at := sockaddr(name)
		var n C.int
		if n, err = C.pd_bind(s.sid, &at, C.sizeof_struct_sockaddr_in); n == 0 {
			n, err = C.pd_listen(s.sid, backlog)
		}
		if n == 0 {
			err = s.poll()
		}
		if err != nil {
			C.pd_close(s.sid)
		}
	}
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "pipe", Addr: Addr(name), Err: err}
	}
	return &Listener{socket: s, addr: s.name(false)}, nil
}

// backlog of a Listener.
const backlog = 1024

// open makes a non-blocking socket with the options.
func (c Config) open() (*socket, error) {
	sid, err := C.pd_socket(C.AF_INET, C.SOCK_STREAM|C.SOCK_NONBLOCK, 0)
	if sid < 0 {
		return nil, fmt.Errorf("reach the pipe's broker: %w", err)
	}
	var engines C.int
	for _, e := range c.Engines {
		engines |= 1 << e
	}
	if engines != 0 {
		if err := set(sid, C.PD_ENGINES, engines); err != nil {
			C.pd_close(sid)
			return nil, err
		}
	}
	return newSocket(sid), nil
}

func set(sid C.int, option, value C.int) error {
	if n, err := C.pd_setsockopt(sid, C.SOL_PD, option, unsafe.Pointer(&value), C.sizeof_int); n < 0 {
		return fmt.Errorf("set an option: %w", err)
	}
	return nil
}

var errAddress = errors.New("want an IPv4 address and a port")

func parse(address string) (netip.AddrPort, error) {
	name, err := netip.ParseAddrPort(address)
	if err != nil || !name.Addr().Is4() {
		return name, fmt.Errorf("address %q: %w", address, errAddress)
	}
	return name, nil
}

// sockaddr returns a name in the library's form.
func sockaddr(name netip.AddrPort) C.struct_sockaddr {
	var to C.struct_sockaddr_in
	to.sin_family = C.AF_INET
	port := (*[2]byte)(unsafe.Pointer(&to.sin_port))
	port[0], port[1] = byte(name.Port()>>8), byte(name.Port())
	*(*[4]byte)(unsafe.Pointer(&to.sin_addr)) = name.Addr().As4()
	return *(*C.struct_sockaddr)(unsafe.Pointer(&to))
}

// name returns the name of a socket's own end or of the peer.
func (s *socket) name(peer bool) Addr {
	var at C.struct_sockaddr_in
	size := C.socklen_t(C.sizeof_struct_sockaddr_in)
	to := (*C.struct_sockaddr)(unsafe.Pointer(&at))
	if peer {
		C.pd_getpeername(s.sid, to, &size)
	} else {
		C.pd_getsockname(s.sid, to, &size)
	}
	port := *(*[2]byte)(unsafe.Pointer(&at.sin_port))
	ip := netip.AddrFrom4(*(*[4]byte)(unsafe.Pointer(&at.sin_addr)))
	return Addr(netip.AddrPortFrom(ip, uint16(port[0])<<8|uint16(port[1])))
}

// isAgain reports whether a call would have blocked.
func isAgain(err error) bool { return errors.Is(err, syscall.EAGAIN) }
