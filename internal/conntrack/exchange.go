package conntrack

import (
	"sync"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/nlmsg"
)

// exchange carries requests and their replies, one request at a time. (A
// netlink.Conn would wait for ever: the kernel marks the only reply to
// msgGet as one of several.)
type exchange struct {
	mu   sync.Mutex // held from a request to the end of its replies
	sock *nlmsg.Socket
}

// do sends a request and calls reply for each message that answers it: one, or
// if it asks for a dump, any number.
func (e *exchange) do(msg uint16, flags netlink.HeaderFlags, family byte, attrs []byte, reply func(nlmsg.Message)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	sequence, err := e.sock.Send(netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_CTNETLINK<<8 | msg),
			Flags: netlink.Request | flags,
		},
		Data: append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attrs...), // struct nfgenmsg
	})
	if err != nil {
		return err
	}
	for done := false; !done; {
		receiveErr := e.sock.Receive(func(m nlmsg.Message) {
			switch {
			case m.Sequence != sequence: // left over from a request cut short
			case m.Type == unix.NLMSG_ERROR || m.Type == unix.NLMSG_DONE:
				done, err = true, m.Err()
			default:
				done = flags&netlink.Dump == 0
				reply(m)
			}
		})
		if receiveErr != nil {
			return receiveErr
		}
	}
	return err
}
