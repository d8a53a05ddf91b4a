package nlmsg

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Commands is a socket for requests that the kernel only acknowledges. Its calls block: the kernel answers before it returns from
// sending, so the runtime's poller would only cost time. It is safe for
// concurrent use.
type Commands struct {
	mu  sync.Mutex // one batch at a time
	fd  int        // -1 after Close
	seq uint32
	buf [8 << 10]byte
}

// OpenCommands opens a socket of a protocol (unix.NETLINK_ROUTE, ...) in the network
// namespace of the calling thread.
func OpenCommands(protocol int) (*Commands, error) {
	fd, err := openSocket(protocol)
	if err != nil {
		return nil, err
	}
	// Acknowledgements without the request, and with the kernel's error text.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	return &Commands{fd: fd}, nil
}

// Close closes the socket after the batch under way. Later ones get EBADF: another file of
// the process may have the socket's number then.
func (c *Commands) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	unix.Close(c.fd)
	c.fd = -1
}

// Command is a request that the kernel acknowledges.
type Command struct {
	What  string // for errors: "make veth v0"
	Type  uint16
	Flags uint16 // NLM_F_*; NLM_F_REQUEST and NLM_F_ACK go without saying
	Data  []byte
	// Allow is an error that is ignored, such as EEXIST.
	Allow unix.Errno
	// Frame marks the begin or the end of a transaction, which the kernel does not
	// acknowledge. It answers the begin if it refuses the whole transaction.
	Frame bool
}

// most is how many commands Do sends in one datagram: there is room for about twice as many
// acknowledgements in the socket.
const most = 128

// Do sends commands; the kernel carries them out in their order, those after a refused one
// included. It returns the first error. A transaction, which begins with a Frame, is one datagram.
func (c *Commands) Do(commands ...Command) (err error) {
	for len(commands) > 0 {
		part := commands
		if !part[0].Frame {
			part = part[:min(most, len(part))]
		}
		commands = commands[len(part):]
		refused, failed := c.Each(part...)
		if failed != nil {
			return cmp.Or(err, failed)
		}
		for i, m := range part {
			if err == nil && refused[i] != nil && !errors.Is(refused[i], m.Allow) {
				err = fmt.Errorf("%s: %w", m.What, refused[i])
			}
		}
	}
	return err
}

// Each sends commands in one datagram, and returns the kernel's error for each.
func (c *Commands) Each(commands ...Command) (refused []error, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.seq + 1
	if err := c.send(c.encode(commands)); err != nil {
		return nil, fmt.Errorf("%s: %w", commands[0].What, err)
	}
	unanswered := 0
	for _, m := range commands {
		if !m.Frame {
			unanswered++
		}
	}
	refused = make([]error, len(commands))
	for unanswered > 0 {
		n, err := unix.Read(c.fd, c.buf[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			// The kernel tells once that it drops some, until the others have been read.
			for lost := err; errors.Is(lost, unix.ENOBUFS) || lost == nil; {
				_, _, lost = unix.Recvfrom(c.fd, c.buf[:], unix.MSG_DONTWAIT)
			}
			return nil, fmt.Errorf("%s: read acknowledgement: %w", commands[0].What, err)
		}
		for r := range Messages(c.buf[:n]) {
			if r.Type != unix.NLMSG_ERROR || r.Sequence < first {
				continue
			}
			i := r.Sequence - first
			refused[i] = ackError(r.Data)
			if commands[i].Frame {
				return nil, fmt.Errorf("%s: %w", commands[i].What, refused[i])
			}
			unanswered--
		}
	}
	return refused, nil
}

// encode numbers commands and puts them into one datagram.
func (c *Commands) encode(commands []Command) (out []byte) {
	for _, m := range commands {
		c.seq++
		out = binary.NativeEndian.AppendUint32(out, uint32(unix.NLMSG_HDRLEN+len(m.Data)))
		out = binary.NativeEndian.AppendUint16(out, m.Type)
		flags := m.Flags | unix.NLM_F_REQUEST
		if !m.Frame {
			flags |= unix.NLM_F_ACK
		}
		out = binary.NativeEndian.AppendUint16(out, flags)
		out = binary.NativeEndian.AppendUint32(out, c.seq)
		out = binary.NativeEndian.AppendUint32(out, 0)
		out = append(out, m.Data...)
		for len(out)%unix.NLMSG_ALIGNTO != 0 {
			out = append(out, 0)
		}
	}
	return out
}

func (c *Commands) send(out []byte) error {
	for {
		err := unix.Sendto(c.fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// ackError is the error in an acknowledgement, with the kernel's text if there is
// one.
func ackError(b []byte) error {
	if len(b) < 4 {
		return unix.EBADMSG
	}
	errno := -int32(binary.NativeEndian.Uint32(b))
	if errno <= 0 {
		return nil
	}
	const attrText = 1 // NLMSGERR_ATTR_MSG
	const header = 4 + unix.NLMSG_HDRLEN
	if len(b) > header {
		for typ, text := range Attributes(b[header:]) {
			if typ == attrText && len(text) > 1 {
				return fmt.Errorf("%w: %s", unix.Errno(errno), text[:len(text)-1])
			}
		}
	}
	return unix.Errno(errno)
}
