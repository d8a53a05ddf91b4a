package nlmsg

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// ErrOverrun means that the kernel has dropped messages. What was queued after
// the gap is dropped as well: read the state again, then go on receiving.
var ErrOverrun = errors.New("messages were lost")

// datagram is the size of the receive buffer in bytes. The kernel sends at
// most 32 KiB.
const datagram = 64 << 10

// Options say what a socket is for.
type Options struct {
	Family int      // NETLINK_ROUTE, ...
	Groups []uint32 // multicast groups to listen to, by number
	// Filter runs in the kernel on every datagram before it is queued; nil
	// passes all.
	Filter []bpf.Instruction
	// Program is the same as a loaded eBPF socket filter; 0 passes all.
	Program int
	// Buffer is the size of the kernel's receive buffer in bytes, which may
	// exceed the limit of the sysctl; 0 leaves the default.
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
	var refused error
	if err := s.raw.Control(func(fd uintptr) { refused = hearKernel(int(fd)) }); err != nil || refused != nil {
		return nil, errors.Join(err, refused)
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

// Close closes the socket and ends a waiting Receive.
func (s *Socket) Close() error {
	return s.conn.Close()
}

// Receive waits for a datagram and calls fn for each of its messages. It can
// be called again after ErrOverrun, but not after another error.
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

// readOnce tries to read one datagram, and reports whether Receive can return.
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

// drain empties the socket's queue after an overrun. The kernel drops messages
// silently until the queue has been empty once, so only what comes later is
// without gaps.
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
