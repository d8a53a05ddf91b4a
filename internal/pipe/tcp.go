package pipe

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tcpSocket is a TCP socket of a connection's proof. The process has made it with its own
// rights and may keep a descriptor. Therefore no call may rely on O_NONBLOCK, and each
// call that takes the socket's lock may hang: the process can hold that lock as long as it
// lives, by a system call that waits for a page fault.
type tcpSocket struct {
	file        *os.File
	raw         syscall.RawConn
	owner       *session // the process that may share the socket; nil: only the broker has it
	local, peer netip.AddrPort
}

// callPatience bounds a call on a process's socket.
const callPatience = 2 * time.Second

var (
	errHeld  = fmt.Errorf("the process holds the lock of its socket: %w", unix.ETIMEDOUT)
	errNetns = fmt.Errorf("the socket belongs to another network namespace: %w", unix.EXDEV)
)

// receiveBuffer of a server's socket, in bytes: it receives tokens only.
const receiveBuffer = 4096

func newTCPSocket(fd int, owner *session) (*tcpSocket, error) {
	t := &tcpSocket{file: os.NewFile(uintptr(fd), "tcp"), owner: owner}
	var err error
	if t.raw, err = t.file.SyscallConn(); err == nil {
		err = t.file.SetDeadline(time.Time{}) // fails unless it is in the runtime's poller
	}
	if err != nil {
		t.file.Close()
		return nil, fmt.Errorf("poll a TCP socket: %w", err)
	}
	return t, nil
}

// takeTCP duplicates a descriptor after it has checked that it is an IPv4 TCP socket in
// the process's network namespace, listening or connected as requested.
func (s *session) takeTCP(fd int, listens bool) (t *tcpSocket, err error) {
	if fd < 0 {
		return nil, unix.EBADF
	}
	want := map[int]int{unix.SO_DOMAIN: unix.AF_INET, unix.SO_PROTOCOL: unix.IPPROTO_TCP, unix.SO_ACCEPTCONN: 0}
	if listens {
		want[unix.SO_ACCEPTCONN] = 1
	}
	for option, v := range want { // these take no lock of the socket
		if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option); err != nil || got != v {
			return nil, errNoTCP
		}
	}
	if err := closesAtOnce(fd); err != nil {
		return nil, err
	}
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return nil, fmt.Errorf("read a socket's network namespace: %w", err)
	}
	if cookie != s.cookie {
		return nil, errNetns
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("keep a TCP socket: %w", err)
	}
	if t, err = newTCPSocket(own, s); err != nil {
		return nil, err
	}
	if err := t.readNames(!listens); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// closesAtOnce refuses a socket whose close waits for its peer (SO_LINGER with a time).
func closesAtOnce(fd int) error {
	var linger unix.Linger
	size := uint32(unsafe.Sizeof(linger))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_LINGER,
		uintptr(unsafe.Pointer(&linger)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return fmt.Errorf("read a socket's SO_LINGER: %w", errno)
	}
	if linger.Onoff != 0 && linger.Linger > 0 {
		return fmt.Errorf("the socket has SO_LINGER with %d s: %w", linger.Linger, unix.EINVAL)
	}
	return nil
}

// readNames reads the socket's address, and the peer's if it is connected.
func (t *tcpSocket) readNames(connected bool) error {
	var local, peer netip.AddrPort
	err := t.call(time.Now().Add(callPatience), func(fd int) (err error) {
		if connected {
			local, peer, err = tcpNames(fd)
			return err
		}
		name, err := unix.Getsockname(fd)
		if err != nil {
			return fmt.Errorf("read a socket's address: %w", err)
		}
		local = addrPort(name)
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	})
	if err == nil {
		t.local, t.peer = local, peer
	}
	return err
}

// call calls fn with the descriptor. After errHeld, fn may still run, and its results
// must not be used.
func (t *tcpSocket) call(deadline time.Time, fn func(fd int) error) error {
	control := func() (err error) {
		if closed := t.raw.Control(func(fd uintptr) { err = fn(int(fd)) }); closed != nil {
			return closed
		}
		return err
	}
	if t.owner == nil {
		return control()
	}
	return t.owner.guard(deadline, control)
}

// guard calls fn, which may hang as long as the process lives. Only one such call of a
// session runs at a time, so that a session blocks one thread at most, and all sessions
// together at most mostCalls.
func (s *session) guard(deadline time.Time, fn func() error) error {
	late := time.NewTimer(time.Until(deadline))
	defer late.Stop()
	select {
	case s.calls <- struct{}{}:
	case <-late.C:
		return errHeld
	}
	if !s.b.calls.Enter(s.owner, deadline) {
		<-s.calls
		return errHeld
	}
	done := make(chan error, 1)
	go func() {
		err := fn()
		s.b.calls.Leave(s.owner)
		<-s.calls
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-late.C:
		return errHeld
	}
}

// readable waits for POLLIN without taking the socket's lock. The zero deadline means no
// timeout.
func (t *tcpSocket) readable(deadline time.Time) error {
	if err := t.file.SetReadDeadline(deadline); err != nil {
		return err
	}
	return t.await()
}

// await waits for POLLIN until the deadline that is set.
func (t *tcpSocket) await() error {
	return t.raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}

// send sends a token, whole or not at all.
func (t *tcpSocket) send(v *token, deadline time.Time) error {
	return t.call(deadline, func(fd int) error {
		n, err := unix.SendmsgN(fd, v[:], nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err == nil && n < len(v) {
			err = unix.EAGAIN
		}
		return err
	})
}

// receive receives a token.
func (t *tcpSocket) receive(deadline time.Time) (*token, error) {
	v := new(token)
	for got := 0; got < len(v); {
		if err := t.readable(deadline); err != nil {
			return nil, err
		}
		n := 0
		err := t.call(deadline, func(fd int) (err error) {
			n, _, err = unix.Recvfrom(fd, v[got:], unix.MSG_DONTWAIT)
			if err == nil && n == 0 {
				err = io.EOF
			}
			return err
		})
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue // the process has read it, or a signal arrived
		}
		if err != nil {
			return nil, err
		}
		got += n
	}
	return v, nil
}

// accept accepts a connection. Only the broker has the new socket. Its close sends a RST;
// keepalives refresh stateful firewalls.
func (t *tcpSocket) accept() (_ *tcpSocket, err error) {
	fd, settled := -1, atomic.Bool{} // set by whichever of the call and the timeout is first; the second one closes fd
	err = t.call(time.Now().Add(callPatience), func(listener int) (err error) {
		accepted, _, err := unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			return err
		}
		if fd = accepted; settled.Swap(true) {
			closeAtOnce(accepted)
		}
		return nil
	})
	if errors.Is(err, errHeld) && settled.Swap(true) {
		closeAtOnce(fd)
	}
	if err != nil {
		return nil, err
	}
	lingerNot(fd)
	for _, o := range [][3]int{
		{unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepAliveSeconds},
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
	} {
		_ = unix.SetsockoptInt(fd, o[0], o[1], o[2])
	}
	accepted, err := newTCPSocket(fd, nil)
	if err != nil {
		return nil, err
	}
	if err := accepted.readNames(true); err != nil {
		accepted.close()
		return nil, err
	}
	return accepted, nil
}

// lingerNot has the close of a socket wait for nothing: it may have the listener's SO_LINGER.
func lingerNot(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}

func closeAtOnce(fd int) {
	lingerNot(fd)
	unix.Close(fd)
}

// keepAliveSeconds is TCP_KEEPIDLE of accepted connections.
const keepAliveSeconds = 60

// close closes the socket; while a call hangs, after it returns.
func (t *tcpSocket) close() {
	if t.owner == nil {
		t.file.Close()
		return
	}
	t.owner.closeLater(t.file.Close)
}

// stopListening frees a listening socket's address, even if a child of a process has a
// copy of the descriptor, as between fork and exec. It takes the socket's lock.
func (t *tcpSocket) stopListening() {
	_ = t.raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
}
