package pipe

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
)

// name is an address and a port that a process listens on, or will.
type name struct {
	owner   *session
	addr    netip.AddrPort
	engines engineSet
	// tcp is a socket of that name in the owner's network namespace: the kernel
	// sees to it that nobody else has the name, and probes arrive there.
	tcp *net.TCPListener

	// Guarded by the broker's lock.
	backlog int
	waiting []*end   // the server's ends of connections that nobody has accepted
	ready   *os.File // doorbell of the backlog, nil before it listens
	owners  *os.File // the other end of it: at its end when the name is gone
	unrung  bool     // that was full: not each connection that waits has rung
	message uint64   // bytes of one, in the connection that ended last; 0 before
}

const (
	// mostSmall is how large messages may be on an average to count as small.
	mostSmall = 4 << 10
	// fewestMessages that say something about those of the next connection.
	fewestMessages = 16
)

// sendsSmall says whether the next connection is likely to carry small messages.
func (n *name) sendsSmall() bool {
	n.owner.b.mu.Lock()
	defer n.owner.b.mu.Unlock()
	return n.message > 0 && n.message <= mostSmall
}

// mostBacklog is the kernel's net.core.somaxconn, by default.
const mostBacklog = 4096

// bind reserves a name.
func (s *session) bind(r request) (answer reply, err error) {
	if !r.Name.Addr().Is4() {
		return answer, unix.EAFNOSUPPORT
	}
	if !s.mayBind(r.Name) {
		return answer, unix.EACCES
	}
	n := &name{owner: s, engines: r.Engines}
	err = s.inNetns(func() error {
		l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(r.Name))
		n.tcp = l
		return err
	})
	if err != nil {
		return answer, fmt.Errorf("reserve %v: %w", r.Name, err)
	}
	n.addr = n.tcp.Addr().(*net.TCPAddr).AddrPort()
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	id, err := s.newID()
	if err != nil {
		n.tcp.Close()
		return answer, err
	}
	s.names[id] = n
	s.b.names[n] = true
	s.b.running.Go(n.receiveProbes)
	return reply{ID: id, Local: n.addr}, nil
}

// inNetns calls fn on a thread in the process's network namespace.
func (s *session) inNetns(fn func() error) error {
	return netns.Do(fmt.Sprintf("/proc/self/fd/%d", s.netns.Fd()), fn)
}

// listen lets connections come to a name.
func (s *session) listen(r request) (answer reply, err error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	n := s.names[r.ID]
	if n == nil {
		return answer, unix.EBADF
	}
	if n.ready == nil {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return answer, fmt.Errorf("make a doorbell: %w", err)
		}
		n.ready, n.owners = os.NewFile(uintptr(pair[0]), "backlog"), os.NewFile(uintptr(pair[1]), "backlog")
	}
	n.backlog = int(min(max(r.Arg, 1), mostBacklog))
	answer.files = []int{int(n.owners.Fd())}
	return answer, keep(&answer, nil)
}

// enqueue puts the server's end of a connection into the backlog. The lock is
// held.
func (n *name) enqueue(e *end) error {
	if n.ready == nil || n.owner.over || !n.owner.b.names[n] {
		return unix.ECONNREFUSED
	}
	if len(n.waiting) >= n.backlog {
		return fmt.Errorf("the backlog of %v is full: %w", n.addr, unix.ECONNREFUSED)
	}
	n.waiting = append(n.waiting, e)
	n.signal()
	return nil
}

// signal rings once for a connection that waits. A doorbell that is full rings again
// as connections are accepted.
func (n *name) signal() { n.unrung = !ringBell(int(n.ready.Fd())) || n.unrung }

// accept hands over the connection that has waited longest.
func (s *session) accept(r request) (answer reply, err error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	n := s.names[r.ID]
	if n == nil {
		return answer, unix.EBADF
	}
	if n.ready == nil {
		return answer, unix.EINVAL
	}
	if len(n.waiting) == 0 {
		return answer, unix.EAGAIN
	}
	id, err := s.newID()
	if err != nil {
		return answer, err
	}
	e := n.waiting[0]
	answer = e.reply(id)
	if err := keep(&answer, nil); err != nil {
		return reply{}, err
	}
	n.waiting = n.waiting[1:]
	if n.unrung = n.unrung && len(n.waiting) > 0; n.unrung {
		n.signal()
	}
	e.owner = s
	s.ends[id] = e
	return answer, nil
}

// remove takes a name away, and what waits there. The lock is held.
func (n *name) remove() {
	delete(n.owner.b.names, n)
	n.tcp.Close()
	for _, e := range n.waiting {
		e.connection.died = true
		e.connection.leave(e)
	}
	n.waiting = nil
	if n.ready != nil {
		n.ready.Close()
		n.owners.Close()
	}
}

// receiveProbes answers what shows that the network lets somebody connect.
func (n *name) receiveProbes() {
	b := n.owner.b
	for {
		conn, err := n.tcp.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of files
			b.log.Warn("pipe: receive probes", "name", n.addr, "error", err)
			if !b.pause() {
				return
			}
			continue
		}
		b.running.Go(func() { b.probes.receive(conn, n) })
	}
}
