package changes

import (
	"encoding/binary"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// settled withdraws decisions for a second time. The kernel announces that a route, a
// next hop or an address goes, or a device, while the route still counts: a packet that
// enters then would confirm its decision by it. All of that happens with the lock of
// rtnetlink held; who gets it afterwards finds the change made.
type settled struct {
	ask     *nlmsg.Requests
	out     *output
	mu      sync.Mutex
	pending []Event
	wake    chan struct{} // closed at the end
	ended   bool
	done    chan struct{}
}

func openSettled(out *output) (*settled, error) {
	ask, err := nlmsg.OpenRequests(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	s := &settled{ask: ask, out: out, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go s.run()
	return s, nil
}

// add takes an event that was announced early.
func (s *settled) add(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.pending = append(s.pending, e)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *settled) run() {
	defer close(s.done)
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

// close ends run, and waits for it.
func (s *settled) close() error {
	s.mu.Lock()
	if !s.ended {
		s.ended = true
		close(s.wake)
	}
	s.mu.Unlock()
	<-s.done
	return s.ask.Close()
}
