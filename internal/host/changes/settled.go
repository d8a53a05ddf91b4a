package changes

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// settled withdraws decisions for a second time. The kernel announces that a route, a
// next hop or an address goes, or a device, while the route still counts, and that an address
// comes when that to it does not yet: a packet that enters then would confirm its decision by
// what was before. All of that happens with the lock of
// rtnetlink held; who gets it afterwards finds the change made.
type settled struct {
	*asker
	out     *output
	pending []Event // guarded by the asker's lock
}

func openSettled(out *output) (*settled, error) {
	a, err := openAsker()
	if err != nil {
		return nil, err
	}
	s := &settled{asker: a, out: out}
	s.run(s.repeat)
	return s, nil
}

// add takes an event that was announced early.
func (s *settled) add(e Event) { s.tell(func() { s.pending = append(s.pending, e) }) }

func (s *settled) repeat() {
	for range s.wake {
		s.mu.Lock()
		events := s.pending
		s.pending = nil
		s.mu.Unlock()
		s.await()
		for _, e := range events {
			s.out.onStale(e)
		}
	}
}

// await returns when nobody holds the lock who held it at the call. The request to set
// nothing of the loopback device takes it; where that is refused, the time for the
// answer has to do.
func (s *settled) await() {
	const loopback = 1 // its number in every namespace
	data := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(data[4:], loopback)
	_ = s.ask.Request(nlmsg.Request{Type: unix.RTM_SETLINK, Flags: unix.NLM_F_ACK, Data: data}, func(nlmsg.Message) {})
}
