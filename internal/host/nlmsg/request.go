package nlmsg

import (
	"encoding/binary"
	"errors"
	"iter"
	"sync"

	"golang.org/x/sys/unix"
)

// Request asks the kernel for something.
type Request struct {
	Type  uint16
	Flags uint16 // NLM_F_*; NLM_F_REQUEST goes without saying
	Data  []byte
	// Quiet requests are answered only if they fail. Each takes them, ahead of one that is
	// not quiet.
	Quiet bool
}

// Requests is a socket for requests that the kernel answers with messages. Its calls
// block, as those of Commands do: the answer is there before the kernel returns from
// sending, and in the runtime's poller each answer would wake another thread. It is safe
// for concurrent use.
type Requests struct {
	mu  sync.Mutex // one request at a time
	fd  int        // -1 when closed
	seq uint32
	out []byte // the latest message
	buf [datagram]byte
}

// OpenRequests opens a socket of a protocol (unix.NETLINK_ROUTE, ...) in the network
// namespace of the calling thread.
func OpenRequests(protocol int) (*Requests, error) {
	fd, err := openSocket(protocol)
	if err != nil {
		return nil, err
	}
	return &Requests{fd: fd}, nil
}

// Strict has the kernel take the fields of a request for a dump for a filter, as
// NETLINK_GET_STRICT_CHK does.
func (s *Requests) Strict() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
}

// Close closes the socket when no request is under way; later ones fail.
func (s *Requests) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	fd := s.fd
	s.fd = -1
	return unix.Close(fd)
}

// Request sends a request and calls reply for each message that answers it:
// one, or any number if it asks for a dump. (ctnetlink marks a single reply as one of
// several.)
func (s *Requests) Request(r Request, reply func(Message)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	if err := s.send(r); err != nil {
		return err
	}
	for {
		messages, err := s.receive()
		if err != nil {
			return err
		}
		for m := range messages {
			switch {
			case m.Sequence != s.seq: // left over from a request cut short
			case m.Type == unix.NLMSG_ERROR || m.Type == unix.NLMSG_DONE:
				return m.err()
			default:
				reply(m)
				if r.Flags&unix.NLM_F_DUMP == 0 {
					return nil
				}
			}
		}
	}
}

// Each sends requests in one message, each for a single answer or an error, and calls answer
// with that, in any order; with the error only if the request is quiet. Their answers have to fit
// into the socket's buffer.
func (s *Requests) Each(all []Request, answer func(i int, m Message, err error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, left := s.seq+1, 0
	s.out = s.out[:0]
	for _, r := range all {
		s.seq++
		s.out = s.encode(s.out, r)
		if !r.Quiet {
			left++
		}
	}
	if err := s.write(s.out); err != nil {
		return err
	}
	answered := make([]bool, len(all))
	for left > 0 {
		messages, err := s.receive()
		if err != nil {
			return err
		}
		for m := range messages {
			i := int(m.Sequence - first)
			if i >= len(all) || answered[i] {
				continue // left over from a request cut short
			}
			answered[i] = true
			if !all[i].Quiet {
				left--
			}
			answer(i, m, m.err())
		}
	}
	return nil
}

func (s *Requests) send(r Request) error { return s.write(s.encode(nil, r)) }

// encode appends a request with the current sequence number.
func (s *Requests) encode(b []byte, r Request) []byte {
	size := unix.NLMSG_HDRLEN + len(r.Data)
	b = binary.NativeEndian.AppendUint32(b, uint32(size))
	b = binary.NativeEndian.AppendUint16(b, r.Type)
	b = binary.NativeEndian.AppendUint16(b, r.Flags|unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, s.seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = append(b, r.Data...)
	return append(b, make([]byte, -size&(unix.NLMSG_ALIGNTO-1))...)
}

func (s *Requests) write(b []byte) error {
	for {
		err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// receive returns the messages of the next datagram, valid until the next call.
func (s *Requests) receive() (iter.Seq[Message], error) {
	for {
		n, err := unix.Read(s.fd, s.buf[:])
		switch {
		case err == nil:
			return Messages(s.buf[:n]), nil
		case errors.Is(err, unix.ENOBUFS):
			return nil, s.drain()
		case !errors.Is(err, unix.EINTR):
			return nil, err
		}
	}
}

// drain empties the socket's queue after an overrun.
func (s *Requests) drain() error {
	for {
		_, _, err := unix.Recvfrom(s.fd, s.buf[:], unix.MSG_DONTWAIT)
		switch {
		case err == nil || errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOBUFS):
		case errors.Is(err, unix.EAGAIN):
			return ErrOverrun
		default:
			return err
		}
	}
}
