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

// Options says what a socket is for.
type Options struct {
	Family int      // NETLINK_ROUTE, ...
	Groups []uint32 // multicast groups to listen to, by number
	// Filter is run in the kernel on every datagram, before that takes up any
	// of the buffer; nil passes all.
	Filter []bpf.Instruction
	// Program is the same as a loaded eBPF socket filter; 0 passes all.
	Program int
	// Buffer is the size of the kernel's receive buffer in bytes, beyond the
	// sysctl's limit if need be; 0 leaves it at the default.
	Buffer int
}

// Socket sends and receives messages in the network namespace it was opened
// in. One goroutine may receive.
type Socket struct {
	conn *netlink.Conn
	raw  syscall.RawConn
	buf  [datagram]byte
	read func(fd uintptr) bool // made once, so that Receive does not allocate
	n    int
	err  error
}

// Open opens a socket in the namespace of the calling thread.
func Open(opts Options) (_ *Socket, err error) {
	conn, err := netlink.Dial(opts.Family, nil)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	if opts.Buffer != 0 {
		if err := conn.SetReadBuffer(opts.Buffer); err != nil {
			return nil, fmt.Errorf("set netlink receive buffer: %w", err)
		}
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
	if opts.Program != 0 {
		if err := attach(conn, opts.Program); err != nil {
			return nil, fmt.Errorf("set netlink filter program: %w", err)
		}
	}
	for _, g := range opts.Groups {
		if err := conn.JoinGroup(g); err != nil {
			return nil, fmt.Errorf("join netlink group %d: %w", g, err)
		}
	}
	s := &Socket{conn: conn}
	if s.raw, err = conn.SyscallConn(); err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	s.read = s.readOnce
	return s, nil
}

func attach(conn *netlink.Conn, program int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var attached error
	err = raw.Control(func(fd uintptr) {
		attached = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_BPF, program)
	})
	return errors.Join(err, attached)
}

// Close closes the socket and ends a Receive that waits.
func (s *Socket) Close() error {
	return s.conn.Close()
}

// Receive waits for a datagram and calls fn for each of its messages. After
// ErrOverrun it can be called again, after any other error it cannot.
func (s *Socket) Receive(fn func(Message)) error {
	if err := s.raw.Read(s.read); err != nil {
		return err
	}
	if s.err != nil {
		return s.err
	}
	for m := range Messages(s.buf[:s.n]) {
		fn(m)
	}
	return nil
}

// readOnce tries to read one datagram and reports whether Receive has to wait
// no longer.
func (s *Socket) readOnce(fd uintptr) bool {
	for {
		s.n, s.err = unix.Read(int(fd), s.buf[:])
		switch s.err {
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		case unix.ENOBUFS:
			s.err = s.drain(int(fd))
			return true
		default:
			return true
		}
	}
}

// drain empties the socket's queue after an overrun. The kernel goes on
// dropping messages in silence until the queue was empty once, so only what
// comes after that is without a gap.
func (s *Socket) drain(fd int) error {
	for {
		_, err := unix.Read(fd, s.buf[:])
		switch err {
		case nil, unix.EINTR, unix.ENOBUFS:
		case unix.EAGAIN:
			return ErrOverrun
		default:
			return err
		}
	}
}
