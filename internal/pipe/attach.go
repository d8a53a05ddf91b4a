package pipe

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/bpf"
	"github.com/scon-project/scon/internal/pipe/engine"
	"github.com/scon-project/scon/internal/pipe/quota"
)

// attachment is one end of a TCP connection whose process requests the pipe
// (docs/run.md). When the other end's process does so too, the two have to prove that
// the network lets the connection through (crossing.go). Only then they get a
// connection of the pipe beside it.
type attachment struct {
	owner    *session
	id       uint32
	tcp      tcpEnd
	cookie   uint64 // the kernel's, of the TCP socket
	ownRings bool   // the process cannot receive from a pool
	local    netip.AddrPort
	peer     netip.AddrPort
	alert    int       // the broker's end of a socket that tells the process of news; -1: closed
	crossing *crossing // once the other end has come
	side     int       // of the crossing: 0 for the end that connected
	err      error     // why there will be no connection
}

// attachedShares bound the rings of attached connections: one may grow to a size while all
// rings take at most 1/share of the memory. Programs that know nothing of the pipe may have
// any number of connections.
var attachedShares = [...]struct {
	size  uint64
	share int64 // divisor of the memory limit
}{{4 << 20, 8}, {1 << 20, 4}, {256 << 10, 4}}

// attachedRing is the size of an attached connection's first rings in bytes: programs may
// rely on what TCP's buffers take of a peer that does not read.
const attachedRing = 256 << 10

// mayHave reports whether a ring may have a size. The lock is held.
func (b *Broker) mayHave(size uint64) bool {
	for _, s := range attachedShares {
		if s.size == size {
			return b.ledger.Used(quota.Memory)+int64(size) <= b.opts.MemoryLimit/s.share
		}
	}
	return false
}

// attachments are on their way to a connection. The broker's lock guards it.
type attachments struct {
	ends    *tcpEnds // reads TCP sockets; loaded on first use
	loads   attempt  // attempts to load it
	waiting map[tcpEnd]*attachment
	// taken are the ends whose proof is not over. A container cannot attach one twice, whether
	// or not its other end has come: it does not learn of that here.
	taken map[ownEnd]*attachment
	// crossings that wait or are under way.
	crossings map[*crossing]bool
}

// ownEnd is an end as a container names it: the sequence numbers can be forged.
type ownEnd struct {
	netns uint64 // cookie
	tcp   tcpEnd
}

func (a *attachment) own() ownEnd { return ownEnd{a.owner.cookie, a.tcp} }

// attach identifies a TCP socket of the process and registers it until its other end
// attaches. It uses no os.File, which would set O_NONBLOCK on the process's socket.
func (s *session) attach(fd int, pooled bool) (answer reply, err error) {
	b := s.b
	if fd < 0 {
		return answer, unix.EBADF
	}
	ends, err := b.loadAttaching()
	if err != nil {
		return answer, err
	}
	a := &attachment{owner: s, alert: -1, ownRings: !pooled}
	if a.cookie, err = s.ownSocket(fd); err != nil {
		return answer, err
	}
	if a.tcp, a.local, a.peer, err = ends.of(fd); err != nil {
		return answer, err
	}
	pair, err := engine.Doorbells(unix.SOCK_STREAM)
	if err != nil {
		return answer, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err = b.take(s.owner, quota.Files, filesOfHalf); err == nil {
		if a.id, err = s.newID(); err == nil {
			err = b.meet(a)
		}
		if err != nil {
			b.ledger.Give(s.owner, quota.Files, filesOfHalf)
		}
	}
	if err != nil {
		closeAll(pair[:])
		return answer, err
	}
	a.alert = pair[1]
	s.attachments[a.id] = a
	s.attaches = s.attaches || pooled
	return reply{ID: a.id, files: []int{pair[0]}, taken: func() error { return unix.Close(pair[0]) }}, nil
}

// ownSocket returns the cookie of a socket of the session's own network namespace.
func (s *session) ownSocket(fd int) (cookie uint64, err error) {
	netns, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("read a socket's network namespace: %w", err)
	}
	if netns != s.cookie {
		return 0, errNetns
	}
	if cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE); err != nil {
		return 0, fmt.Errorf("look at a TCP socket: %w", err)
	}
	return cookie, nil
}

// meet looks for the other end of a connection. Equal sequence numbers only find it:
// they can be forged. The lock is held.
func (b *Broker) meet(a *attachment) error {
	at := &b.attach
	if at.taken[a.own()] != nil {
		return fmt.Errorf("that end is attached already: %w", unix.EBUSY)
	}
	at.taken[a.own()] = a
	client, server := a, at.waiting[a.tcp.asClient()]
	if server == nil {
		client, server = at.waiting[a.tcp.asServer()], a
	}
	if client == nil || server == nil || client.cookie == server.cookie {
		at.wait(a)
		return nil
	}
	delete(at.waiting, client.tcp)
	delete(at.waiting, server.tcp)
	client.side, server.side = 0, 1
	c := &crossing{b: b, ends: [2]*attachment{client, server}}
	client.crossing, server.crossing = c, c
	c.await()
	return nil
}

// wait has an end wait for its other one. Of two containers that name the same end, the
// later one waits in vain; it does not learn of that.
func (at *attachments) wait(a *attachment) {
	if at.waiting[a.tcp] == nil {
		at.waiting[a.tcp] = a
	}
}

// release lets the container attach the end again.
func (at *attachments) release(a *attachment) {
	if at.taken[a.own()] == a {
		delete(at.taken, a.own())
	}
}

// loadAttaching loads the engine bpf and the program that reads TCP sockets on first use.
// Doorbells must be made after the engine is loaded.
func (b *Broker) loadAttaching() (*tcpEnds, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := &b.attach
	if at.ends == nil && at.loads.due(time.Now()) {
		ends, err := newTCPEnds()
		if at.loads.done(err, time.Now()); err == nil {
			at.ends = ends
		} else {
			b.log.Error("pipe: cannot attach TCP connections; they stay with TCP", "error", err, "retry", at.loads.pause)
		}
	}
	b.loadProgram(1 << BPF)
	if at.ends == nil || !b.has(BPF) {
		return nil, unix.EPROTONOSUPPORT
	}
	return at.ends, nil
}

// forget removes an attachment from the session. The lock is held.
func (s *session) forget(a *attachment) {
	delete(s.attachments, a.id)
	s.b.attach.release(a)
	s.b.ledger.Give(s.owner, quota.Files, filesOfHalf)
}

// drop ends an attachment. The lock is held.
func (s *session) drop(a *attachment) {
	s.forget(a)
	if s.b.attach.waiting[a.tcp] == a {
		delete(s.b.attach.waiting, a.tcp)
	}
	if c := a.crossing; c != nil {
		c.leave(a, fmt.Errorf("the other end has gone: %w", unix.ESTALE))
		if s.b.connections[c.made] {
			c.made.detach()
		}
	}
	a.close()
}

// tell makes the process look for news.
func (a *attachment) tell() {
	if a.alert >= 0 {
		engine.Signal(a.alert)
	}
}

// close tells the process that the attempt is over.
func (a *attachment) close() {
	if a.alert >= 0 {
		_ = unix.Shutdown(a.alert, unix.SHUT_RDWR) // a child may have a copy
		a.owner.closeAlert(a.alert)
		a.alert = -1
	}
}

// detach moves a connection back to TCP. After it returns, no byte is written to its
// rings, even if they were removed before. Any process that holds the socket may call it.
func (b *Broker) detach(fd int) error {
	if fd < 0 {
		return unix.EBADF
	}
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return fmt.Errorf("read a socket's cookie: %w", err)
	}
	k, was := b.detachOf(cookie)
	if k != nil {
		if err := k.Quiesce(); err != nil {
			return err
		}
	}
	if !was {
		return fmt.Errorf("this connection is not attached: %w", unix.EBADF)
	}
	return nil
}

// detachOf detaches the connection of a TCP socket, and reports whether there was one. It
// returns the program that may still be copying, or nil.
func (b *Broker) detachOf(cookie uint64) (_ *bpf.Program, was bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.connections {
		if c.attached && (c.ends[0].cookie == cookie || c.ends[1].cookie == cookie) {
			c.detach()
			return b.program, true
		}
	}
	for c := range b.attach.crossings {
		for _, a := range c.ends {
			if a.cookie == cookie {
				c.leave(a, errDetached)
				return b.program, true
			}
		}
	}
	return b.program, false
}

var (
	// errRulesChanged makes a process attach again: the rules have changed since the
	// tokens were chosen.
	errRulesChanged = fmt.Errorf("the network's rules have changed meanwhile: %w", unix.ESTALE)
	errDetached     = fmt.Errorf("an end stays on TCP: %w", unix.ESTALE)
)

// detachAll moves all attached connections back to TCP, under the current rules, and
// invalidates tokens that were chosen before. The lock is held.
func (b *Broker) detachAll() {
	for c := range b.attach.crossings {
		if c.admitted { // else it has no tokens yet
			c.changed = true
			c.fail(errRulesChanged)
		}
	}
	var all []*connection
	for c := range b.connections {
		if c.attached {
			c.cut()
			all = append(all, c)
		}
	}
	if len(all) > 0 {
		b.running.Go(func() { b.release(all) })
	}
}

// Connections that are released at a time, and the pause in between: the processes send by
// TCP meanwhile.
const (
	mostReleases = 32
	releasePause = 10 * time.Millisecond
)

// release frees connections that are cut.
func (b *Broker) release(all []*connection) {
	for some := range slices.Chunk(all, mostReleases) {
		b.mu.Lock()
		for _, c := range some {
			c.free()
		}
		b.mu.Unlock()
		select {
		case <-time.After(releasePause):
		case <-b.ctx.Done(): // without pauses
		}
	}
}
