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

	"golang.org/x/sys/unix"
)

// tcpSocket is a TCP socket that the broker keeps. A process makes the sockets by
// which a connection proves itself, with its own rights, and may keep a descriptor
// of them. So no call may rely on O_NONBLOCK, and any call that takes the socket's
// lock may hang: the process can hold that lock for as long as it lives, by a call
// that waits for memory.
type tcpSocket struct {
	file        *os.File
	raw         syscall.RawConn
	owner       *session // the process that may have the socket, too; nil: the broker alone
	local, peer netip.AddrPort
}

// callPatience is how long a call on a process's socket may take.
const callPatience = 2 * time.Second

var (
	errHeld  = fmt.Errorf("the process holds the lock of its socket: %w", unix.ETIMEDOUT)
	errNetns = fmt.Errorf("the socket is of another network namespace: %w", unix.EXDEV)
)

// receiveBuffer of a server's socket, in bytes: it only ever receives a token.
const receiveBuffer = 4096

func newTCPSocket(fd int, owner *session) (*tcpSocket, error) {
	t := &tcpSocket{file: os.NewFile(uintptr(fd), "tcp"), owner: owner}
	var err error
	if t.raw, err = t.file.SyscallConn(); err == nil {
		err = t.file.SetDeadline(time.Time{}) // fails unless the runtime's poller has it
	}
	if err != nil {
		t.file.Close()
		return nil, fmt.Errorf("wait for a TCP socket: %w", err)
	}
	return t, nil
}

// takeTCP checks that a descriptor is an IPv4 TCP socket of the process's network
// namespace which either listens or is connected, and keeps a duplicate.
func (s *session) takeTCP(fd int, listens bool) (t *tcpSocket, err error) {
	if fd < 0 {
		return nil, unix.EBADF
	}
	want := map[int]int{unix.SO_DOMAIN: unix.AF_INET, unix.SO_PROTOCOL: unix.IPPROTO_TCP, unix.SO_ACCEPTCONN: 0}
	if listens {
		want[unix.SO_ACCEPTCONN] = 1
	}
	for option, v := range want { // none of them takes the socket's lock
		if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option); err != nil || got != v {
			return nil, errNoTCP
		}
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

// readNames reads the socket's addresses; of a connected one also its peer's.
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

// call calls fn with the descriptor. When it returns errHeld, fn may still run, so
// its results must not be used.
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

// guard calls fn, which may hang for as long as the process likes. Only one such call
// of a session runs at a time: a session costs the broker one thread at most.
func (s *session) guard(deadline time.Time, fn func() error) error {
	late := time.NewTimer(time.Until(deadline))
	defer late.Stop()
	select {
	case s.calls <- struct{}{}:
	case <-late.C:
		return errHeld
	}
	done := make(chan error, 1)
	go func() {
		err := fn()
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

// readable waits until there is something to receive or to accept, without the
// socket's lock. The zero deadline is none.
func (t *tcpSocket) readable(deadline time.Time) error {
	if err := t.file.SetReadDeadline(deadline); err != nil {
		return err
	}
	return t.raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}

// send sends a token, whole or not at all.
func (t *tcpSocket) send(v token, deadline time.Time) error {
	return t.call(deadline, func(fd int) error {
		n, err := unix.SendmsgN(fd, v[:], nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err == nil && n < len(v) {
			err = unix.EAGAIN
		}
		return err
	})
}

// receive receives a token.
func (t *tcpSocket) receive(deadline time.Time) (token, error) {
	var v token
	for got := 0; got < len(v); {
		if err := t.readable(deadline); err != nil {
			return token{}, err
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
			continue // the process took it, or a signal came
		}
		if err != nil {
			return token{}, err
		}
		got += n
	}
	return v, nil
}

// accept takes a connection that waits at a listener. The socket is the broker's
// alone: it is reset when it is closed, and kept alive for stateful firewalls that
// forget idle connections.
func (t *tcpSocket) accept() (_ *tcpSocket, err error) {
	fd, settled := -1, atomic.Bool{} // settled: one of the two is done; the other one closes
	err = t.call(time.Now().Add(callPatience), func(listener int) (err error) {
		accepted, _, err := unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			return err
		}
		if fd = accepted; settled.Swap(true) {
			unix.Close(accepted)
		}
		return nil
	})
	if errors.Is(err, errHeld) && settled.Swap(true) {
		unix.Close(fd)
	}
	if err != nil {
		return nil, err
	}
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
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

// keepAliveSeconds an idle connection waits before it shows that it is there.
const keepAliveSeconds = 60

// close gives the socket back. A call that hangs keeps it until the call returns.
func (t *tcpSocket) close() {
	if t.owner == nil {
		t.file.Close()
		return
	}
	go t.file.Close()
}

// stopListening frees a listening socket's address, also if a child of this
// process or of the socket's has a copy of it, as each has between fork and exec.
// It takes the socket's lock.
func (t *tcpSocket) stopListening() {
	_ = t.raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
}
