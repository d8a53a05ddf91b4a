package pipe

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/engine"
)

// name is an address and a port that a process listens on, or will.
type name struct {
	owner   *session
	addr    netip.AddrPort
	engines engineSet
	// tcp is the process's own TCP socket, which listens there: the kernel has judged
	// whether the process may have the name, and nobody else has it.
	tcp   *tcpSocket
	freed chan struct{} // closed with tcp

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

// bind takes the TCP socket that the process has bound, and accepts there.
func (s *session) bind(r request) (answer reply, err error) {
	tcp, err := s.takeTCP(r.file, true)
	if err != nil {
		return answer, fmt.Errorf("take a TCP socket that listens: %w", err)
	}
	n := &name{owner: s, engines: r.Engines, tcp: tcp, addr: tcp.local, freed: make(chan struct{})}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	id, err := s.newID()
	if err != nil {
		tcp.close()
		return answer, err
	}
	s.names[id] = n
	s.b.names[n] = true
	s.b.running.Go(n.acceptAll)
	return reply{ID: id, Local: n.addr}, nil
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
func (n *name) signal() { n.unrung = !engine.Signal(int(n.ready.Fd())) || n.unrung }

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
	go func() { // not with the lock: it may hang
		n.tcp.file.Close()
		close(n.freed)
	}()
	n.owner.b.proofs.dropStrangers(n)
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

// awaitFree waits until somebody else can have the name, if the process lets it.
func (n *name) awaitFree() {
	select {
	case <-n.freed:
	case <-time.After(callPatience):
	}
}

// acceptAll takes in who connects by TCP, until the name is removed.
func (n *name) acceptAll() {
	b := n.owner.b
	for n.tcp.readable(time.Time{}) == nil {
		tcp, err := n.tcp.accept()
		if err == nil {
			b.running.Go(func() { b.proofs.meet(n, tcp) })
			continue
		}
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) || errors.Is(err, errNoTCP) {
			continue // it has gone again
		}
		b.log.Debug("pipe: accept TCP", "name", n.addr, "error", err)
		if !b.pause() {
			return
		}
	}
}
