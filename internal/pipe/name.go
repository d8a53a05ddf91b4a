package pipe

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/engine"
	"github.com/scon-project/scon/internal/pipe/quota"
)

// name is an address and a port that a process has bound at the broker.
type name struct {
	owner   *session
	addr    netip.AddrPort
	engines engineSet
	// tcp is the process's own TCP socket, which listens there: the kernel has decided
	// that the process may bind the address, and it is bound only once.
	tcp   *tcpSocket
	freed chan struct{} // closed with tcp

	// Guarded by the broker's lock.
	backlog int
	waiting quota.Queue[*end] // server's ends of connections that are not accepted yet, by client
	ready   *os.File          // doorbell of the backlog; nil until listen
	owners  *os.File          // the process's end of the doorbell; EOF when the name is removed
	unrung  bool              // the doorbell was full: some waiting connections are not signaled yet
	message uint64            // mean size in the last ended connection, bytes; 0: unknown
}

const (
	// mostSmall is the largest mean size of small messages, in bytes.
	mostSmall = 4 << 10
	// fewestMessages a connection must have for a meaningful mean.
	fewestMessages = 16
)

// sendsSmall reports whether the next connection is likely to carry small messages.
func (n *name) sendsSmall() bool {
	n.owner.b.mu.Lock()
	defer n.owner.b.mu.Unlock()
	return n.message > 0 && n.message <= mostSmall
}

// mostBacklog equals the default of net.core.somaxconn.
const mostBacklog = 4096

// bind makes a name of a listening TCP socket of the process, and accepts there.
func (s *session) bind(r request) (answer reply, err error) {
	tcp, err := s.takeTCP(r.file, true)
	if err != nil {
		return answer, fmt.Errorf("take a listening TCP socket: %w", err)
	}
	n := &name{owner: s, engines: r.Engines, tcp: tcp, addr: tcp.local, freed: make(chan struct{})}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	id, err := s.newID()
	if err == nil {
		err = s.b.takeBoth(s.owner, quota.Names, 1, filesOfName)
	}
	if err != nil {
		tcp.close()
		return answer, err
	}
	s.names[id] = n
	s.b.names[n] = true
	s.b.running.Go(n.acceptAll)
	return reply{ID: id, Local: n.addr}, nil
}

// listen lets a name receive connections and returns its doorbell.
func (s *session) listen(r request) (answer reply, err error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	n := s.names[r.ID]
	if n == nil {
		return answer, unix.EBADF
	}
	if n.ready == nil {
		pair, err := engine.Doorbells(unix.SOCK_SEQPACKET | unix.SOCK_NONBLOCK)
		if err != nil {
			return answer, err
		}
		n.ready, n.owners = os.NewFile(uintptr(pair[0]), "backlog"), os.NewFile(uintptr(pair[1]), "backlog")
	}
	n.backlog = int(min(max(r.Arg, 1), mostBacklog))
	answer.files = []int{int(n.owners.Fd())}
	return answer, s.keep(&answer, nil)
}

// enqueue adds the server's end of a connection to the backlog. The lock is held.
func (n *name) enqueue(e *end) error {
	if n.ready == nil || n.owner.over || !n.owner.b.names[n] {
		return unix.ECONNREFUSED
	}
	client := e.peer().owner.owner
	if err := n.owner.b.take(client, quota.Pending, 1); err != nil {
		return err
	}
	if n.waiting.Len() >= n.backlog {
		out, ok := n.waiting.Yield(client)
		if !ok {
			n.owner.b.ledger.Give(client, quota.Pending, 1)
			return fmt.Errorf("the backlog of %v is full: %w", n.addr, unix.ECONNREFUSED)
		}
		n.owner.b.counts.Refused["backlog"]++
		out.dismiss()
	}
	n.waiting.Push(client, e)
	n.signal()
	return nil
}

// dismiss resets a connection that was not accepted. The lock is held.
func (e *end) dismiss() {
	e.unqueue()
	if c := e.connection; c.b.connections[c] { // not ended with the session that has both ends
		c.died = true
		c.leave(e)
	}
}

// unqueue returns a connection's unit of quota.Pending. The lock is held.
func (e *end) unqueue() {
	e.connection.b.ledger.Give(e.peer().owner.owner, quota.Pending, 1)
}

// signal sends one packet for a waiting connection. If the doorbell is full, accept sends
// the rest.
func (n *name) signal() { n.unrung = !engine.Signal(int(n.ready.Fd())) || n.unrung }

// accept returns a waiting connection. The clients' containers are served round-robin.
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
	if n.waiting.Len() == 0 {
		return answer, unix.EAGAIN
	}
	id, err := s.newID()
	if err != nil {
		return answer, err
	}
	e, _ := n.waiting.Next()
	answer = e.reply(id)
	if err := s.keep(&answer, nil); err != nil {
		return reply{}, err
	}
	n.waiting.Pop()
	e.unqueue()
	if n.unrung = n.unrung && n.waiting.Len() > 0; n.unrung {
		n.signal()
	}
	e.owner = s
	s.ends[id] = e
	return answer, nil
}

// remove deletes a name and resets its waiting connections. The lock is held.
func (n *name) remove() {
	delete(n.owner.b.names, n)
	_ = n.tcp.file.SetReadDeadline(time.Unix(1, 0)) // ends acceptAll, though the close may have to wait
	n.owner.closeLater(func() error {               // without the lock: the process may hold the socket's
		defer close(n.freed)
		n.tcp.stopListening()
		return n.tcp.file.Close()
	})
	n.owner.b.proofs.dropStrangers(n)
	n.waiting.Each((*end).dismiss)
	n.waiting.Clear()
	n.owner.b.ledger.Give(n.owner.owner, quota.Names, 1)
	n.owner.b.ledger.Give(n.owner.owner, quota.Files, filesOfName)
	if n.ready != nil {
		n.owner.closeLater(n.ready.Close)
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
	for n.tcp.await() == nil {
		tcp, err := n.tcp.accept()
		if err == nil {
			b.running.Go(func() { b.proofs.identify(n, tcp) })
			continue
		}
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) || errors.Is(err, errNoTCP) {
			continue // closed by the client
		}
		b.log.Debug("pipe: accept TCP", "name", n.addr, "error", err)
		if !b.pause() {
			return
		}
	}
}
