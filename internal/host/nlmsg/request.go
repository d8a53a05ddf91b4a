package nlmsg

import (
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Request asks the kernel for something.
type Request struct {
	Type  uint16
	Flags uint16 // NLM_F_*; NLM_F_REQUEST goes without saying
	Data  []byte
}

// Request sends a request and calls reply for each message that answers it:
// one, or any number if it asks for a dump. A socket that makes requests listens
// to no groups, and makes one at a time. (netlink.Conn.Receive does not do:
// ctnetlink marks a single reply as one of several, and it would wait for more.)
func (s *Socket) Request(r Request, reply func(Message)) error {
	sent, err := s.conn.Send(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(r.Type), Flags: netlink.HeaderFlags(r.Flags) | netlink.Request},
		Data:   r.Data,
	})
	if err != nil {
		return err
	}
	for done := false; !done; {
		receiveErr := s.Receive(func(m Message) {
			switch {
			case m.Sequence != sent.Header.Sequence: // left over from a request cut short
			case m.Type == unix.NLMSG_ERROR || m.Type == unix.NLMSG_DONE:
				done, err = true, m.err()
			default:
				done = sent.Header.Flags&netlink.Dump == 0
				reply(m)
			}
		})
		if receiveErr != nil {
			return receiveErr
		}
	}
	return err
}
