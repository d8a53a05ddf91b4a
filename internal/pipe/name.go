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

// name is an address and a port that a process has bound.
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
	ready   *os.File // doorbell of the backlog, nil until it listens
	owners  *os.File // the process's end of it; EOF when the name is removed
	unrung  bool     // the doorbell was full: some waiting connections have no packet
	message uint64   // mean size in the connection that ended last, bytes; 0: none
}

const (
	// mostSmall is the largest mean size of small messages, in bytes.
	mostSmall = 4 << 10
	// fewestMessages is how many a connection needs for a mean that counts.
	fewestMessages = 16
)

// sendsSmall reports whether the next connection is likely to carry small messages.
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

// listen opens a name for connections.
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

// signal sends one packet for a waiting connection. A full doorbell gets the rest as
// connections are accepted.
func (n *name) signal() { n.unrung = !engine.Signal(int(n.ready.Fd())) || n.unrung }

// accept returns the connection that has waited longest.
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

// remove deletes a name and the connections that wait there. The lock is held.
func (n *name) remove() {
	delete(n.owner.b.names, n)
	go func() { // without the lock: it may hang
		n.tcp.stopListening()
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

// awaitFree waits until the name can be bound again, for a limited time.
func (n *name) awaitFree() {
	select {
	case <-n.freed:
	case <-time.After(callPatience):
	}
}

// acceptAll accepts TCP connections until the name is removed.
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
