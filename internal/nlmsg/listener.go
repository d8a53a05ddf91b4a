package nlmsg

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// ErrOverrun says that the kernel had to drop messages. What was queued behind
// the gap is dropped as well: read the state anew, then listen on.
var ErrOverrun = errors.New("messages were lost")

// datagram is the size of the buffer that a datagram is read into, in bytes.
// The kernel builds none beyond 32 KiB.
const datagram = 64 << 10

// ListenerOptions says what to listen to.
type ListenerOptions struct {
	Family int      // NETLINK_ROUTE, ...
	Groups []uint32 // multicast groups, by number
	// Filter is run in the kernel on every datagram, before that takes up any
	// of the buffer; nil passes all.
	Filter []bpf.Instruction
	// Buffer is the size of the kernel's receive buffer in bytes, beyond the
	// sysctl's limit if need be.
	Buffer int
}

// Listener receives multicast messages in the network namespace it was opened
// in. One goroutine may receive.
type Listener struct {
	conn *netlink.Conn
	raw  syscall.RawConn
	buf  [datagram]byte
	read func(fd uintptr) bool // made once, so that Receive does not allocate
	n    int
	err  error
}

// Listen joins the groups in the namespace of the calling thread.
func Listen(opts ListenerOptions) (_ *Listener, err error) {
	conn, err := netlink.Dial(opts.Family, nil)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	if err := conn.SetReadBuffer(opts.Buffer); err != nil {
		return nil, fmt.Errorf("set netlink receive buffer: %w", err)
	}
	if opts.Filter != nil {
		filter, err := bpf.Assemble(opts.Filter)
		if err != nil {
			return nil, fmt.Errorf("assemble netlink filter: %w", err)
		}
		if err := conn.SetBPF(filter); err != nil {
			return nil, fmt.Errorf("set netlink filter: %w", err)
		}
	}
	for _, g := range opts.Groups {
		if err := conn.JoinGroup(g); err != nil {
			return nil, fmt.Errorf("join netlink group %d: %w", g, err)
		}
	}
	l := &Listener{conn: conn}
	if l.raw, err = conn.SyscallConn(); err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	l.read = l.readOnce
	return l, nil
}

// Close ends a Receive that waits.
func (l *Listener) Close() error {
	return l.conn.Close()
}

// Receive waits for a datagram and calls fn for each of its messages. After
// ErrOverrun it can be called again, after any other error it cannot.
func (l *Listener) Receive(fn func(Message)) error {
	if err := l.raw.Read(l.read); err != nil {
		return err
	}
	if l.err != nil {
		return l.err
	}
	for m := range Messages(l.buf[:l.n]) {
		fn(m)
	}
	return nil
}

// readOnce tries to read one datagram and reports whether Receive has to wait
// no longer.
func (l *Listener) readOnce(fd uintptr) bool {
	for {
		l.n, l.err = unix.Read(int(fd), l.buf[:])
		switch l.err {
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		case unix.ENOBUFS:
			l.err = l.drain(int(fd))
			return true
		default:
			return true
		}
	}
}

// drain empties the socket's queue after an overrun. The kernel goes on
// dropping messages in silence until the queue was empty once, so only what
// comes after that is without a gap.
func (l *Listener) drain(fd int) error {
	for {
		_, err := unix.Read(fd, l.buf[:])
		switch err {
		case nil, unix.EINTR, unix.ENOBUFS:
		case unix.EAGAIN:
			return ErrOverrun
		default:
			return err
		}
	}
}
