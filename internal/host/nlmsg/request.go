package nlmsg

import (
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Request sends a request and calls reply for each message that answers it:
// one, or if it asks for a dump, any number. A socket that makes requests
// listens to no groups, and makes one at a time. (A netlink.Conn is not up to
// it: ctnetlink marks an only reply as one of several, and it would wait on.)
func (s *Socket) Request(m netlink.Message, reply func(Message)) error {
	m.Header.Flags |= netlink.Request
	m, err := s.conn.Send(m)
	if err != nil {
		return err
	}
	for done := false; !done; {
		receiveErr := s.Receive(func(r Message) {
			switch {
			case r.Sequence != m.Header.Sequence: // left over from a request cut short
			case r.Type == unix.NLMSG_ERROR || r.Type == unix.NLMSG_DONE:
				done, err = true, r.err()
			default:
				done = m.Header.Flags&netlink.Dump == 0
				reply(r)
			}
		})
		if receiveErr != nil {
			return receiveErr
		}
	}
	return err
}
