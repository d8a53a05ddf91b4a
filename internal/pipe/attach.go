package pipe

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/bpf"
	"github.com/scon-project/scon/internal/pipe/engine"
)

// attachment is one end of a TCP connection whose process requests the pipe
// (docs/run.md). When the other end's process does so too, the two get a connection of
// the pipe beside the TCP connection.
type attachment struct {
	owner    *session
	id       uint32
	tcp      tcpEnd
	cookie   uint64 // the kernel's, of the TCP socket
	local    netip.AddrPort
	peer     netip.AddrPort
	doorbell [2]int // its own, the other end's; -1 once handed over
	end      *end   // once there is a connection
	err      error  // why there is none
	round    uint64 // of the network's rules at the request
}

// attachedRings are how large the rings may be from the beginning, while all rings
// take no more than a share of the memory: what goes over has sent much already.
// They do not grow.
var attachedRings = [...]struct {
	size  int64
	share int64 // one of so many
}{{4 << 20, 8}, {1 << 20, 4}}

// attachments are waiting for their other end. The broker's lock guards
// it.
type attachments struct {
	ends    *tcpEnds // nil until it is wanted
	noEnds  error    // why it does not work, when that is known
	waiting map[tcpEnd]*attachment
	round   uint64 // of the network's rules: they may have changed so often
}

// attach reads the TCP socket of a process and registers it for its other end.
// No os.File: it would alter whether the process's socket blocks.
func (s *session) attach(fd int) (answer reply, err error) {
	b := s.b
	if fd < 0 {
		return answer, unix.EBADF
	}
	var local, peer netip.AddrPort
	if err := s.guard(time.Now().Add(callPatience), func() (err error) {
		local, peer, err = tcpNames(fd)
		return err
	}); err != nil {
		return answer, err
	}
	ends, err := b.loadAttaching()
	if err != nil {
		return answer, err
	}
	a := &attachment{owner: s, local: local, peer: peer, doorbell: [2]int{-1, -1}}
	if a.tcp, err = ends.of(fd); err != nil {
		return answer, err
	}
	if a.cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE); err != nil {
		return answer, fmt.Errorf("look at a TCP socket: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.id, err = s.newID(); err != nil {
		return answer, err
	}
	a.round = b.attach.round
	if b.attach.waiting[a.tcp] != nil {
		return answer, fmt.Errorf("that end is attached already: %w", unix.EBUSY)
	}
	client, server := a, b.attach.waiting[a.tcp.asClient()]
	if server == nil {
		client, server = b.attach.waiting[a.tcp.asServer()], a
	}
	if client == nil || server == nil {
		if a.doorbell, err = engine.Doorbells(); err != nil {
			return answer, err
		}
		b.attach.waiting[a.tcp] = a
	} else {
		first := client
		if first == a {
			first = server
		}
		delete(b.attach.waiting, first.tcp)
		a.doorbell[0], first.doorbell[1] = first.doorbell[1], -1
		b.running.Go(func() { b.pair(client, server) })
	}
	answer = reply{ID: a.id, files: []int{a.doorbell[0]}}
	if err := keep(&answer, nil); err != nil {
		return reply{}, err
	}
	s.attachments[a.id] = a
	return answer, nil
}

// loadAttaching loads what attaching takes when it is first wanted: the engine
// bpf, for whose program the doorbells have to be made, and the look at sockets.
func (b *Broker) loadAttaching() (*tcpEnds, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := &b.attach
	if at.ends == nil && at.noEnds == nil {
		if at.ends, at.noEnds = newTCPEnds(); at.noEnds != nil {
			b.log.Error("the pipe cannot attach TCP connections", "error", at.noEnds)
		}
	}
	b.loadProgram(1 << BPF)
	if at.noEnds != nil || b.noProgram != nil {
		return nil, unix.EPROTONOSUPPORT
	}
	return at.ends, nil
}

// pair makes the connection of two ends.
func (b *Broker) pair(client, server *attachment) {
	c := &connection{b: b, begun: time.Now(), name: server.local, attached: true}
	both := [2]*attachment{client, server}
	for i, a := range both {
		c.ends[i] = newEnd(c, a.owner, a.local, a.peer)
		c.ends[i].id, c.ends[i].cookie = a.id, a.cookie
	}
	err := b.prepare(c, both)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range both {
		if err == nil && a.owner.attachments[a.id] != a {
			err = fmt.Errorf("process %d has gone: %w", a.owner.party.PID, unix.ECONNRESET)
		}
		if err == nil && a.round != b.attach.round {
			err = errRulesChanged
		}
	}
	for i, a := range both {
		if a.err = err; err == nil {
			a.end = c.ends[i]
		} else if a.owner.attachments[a.id] != a {
			a.close()
		}
		// In both cases notify both ends.
		for _, fd := range []int{c.ends[i].Doorbell, a.doorbell[0]} {
			if fd >= 0 {
				engine.Signal(fd)
			}
		}
	}
	if err != nil {
		b.log.Debug("pipe: attach", "error", err)
		c.free()
		return
	}
	b.counts.Connections++
	c.number = b.counts.Connections
	b.connections[c] = true
}

// prepare makes the memory of an attached connection, which takes over the
// doorbells.
func (b *Broker) prepare(c *connection, both [2]*attachment) error {
	if !b.allows(c.ends) {
		b.refuse("allow list")
		return unix.EACCES
	}
	if err := c.begin(1<<BPF, 1<<BPF, near); err != nil {
		return err
	}
	b.mu.Lock()
	for i, a := range both {
		c.ends[i].Doorbell, a.doorbell[0] = a.doorbell[0], -1
	}
	b.mu.Unlock()
	if err := c.open(); err != nil {
		return err
	}
	size := c.chargeLarge()
	if size == 0 {
		return nil
	}
	for _, e := range c.ends {
		if err := e.Memory.(*bpf.Memory).GrowNow(size); err != nil {
			return err
		}
	}
	return nil
}

// chargeLarge counts two large rings, if there is plenty of memory, and returns
// their size, or 0: both ends rely on them to be of one size.
func (c *connection) chargeLarge() (size uint64) {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	for _, r := range attachedRings {
		if c.b.used+2*r.size <= c.b.opts.MemoryLimit/r.share && c.chargeBoth(r.size) {
			return uint64(r.size)
		}
	}
	return 0
}

// chargeBoth counts a ring of each end, or none.
func (c *connection) chargeBoth(size int64) bool {
	before := len(c.held)
	for _, e := range c.ends {
		if err := c.charge(e.party.Netns, size); err != nil {
			for _, h := range c.held[before:] {
				c.b.discharge(h)
			}
			c.held = c.held[:before]
			return false
		}
	}
	return true
}

// attached returns an end whose other end has come.
func (s *session) attached(id uint32) (answer reply, err error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	a := s.attachments[id]
	switch {
	case a == nil:
		return answer, unix.EBADF
	case a.err != nil:
		return answer, a.err
	case a.end == nil:
		return answer, unix.EAGAIN
	case a.end.Memory == nil:
		return answer, unix.ECONNRESET // it is over again
	}
	e := a.end
	answer = reply{ID: id, Engine: e.connection.engine, Peer: e.sees, Local: e.addr}
	files, size := e.Memory.Files()
	generation := uint32(0)
	if later, sizeLater, err := e.Memory.Ring(1); err == nil {
		files[1], size, generation = later[0], sizeLater, 1
	}
	if e == e.connection.ends[0] {
		answer.Generation = 1
	}
	answer.files, answer.Size = files, size
	if err := keep(&answer, nil); err != nil {
		return reply{}, err
	}
	if generation > 0 {
		e.Memory.Given(generation)
	}
	delete(s.attachments, id)
	s.ends[id] = e
	return answer, nil
}

// drop ends an attachment. The lock is held.
func (s *session) drop(a *attachment) {
	delete(s.attachments, a.id)
	if s.b.attach.waiting[a.tcp] == a {
		delete(s.b.attach.waiting, a.tcp)
		a.close()
		return
	}
	switch {
	case a.end != nil:
		a.end.connection.leave(a.end)
	case a.err != nil:
		a.close()
	}
	// Otherwise pair is running and will notice.
}

func (a *attachment) close() {
	for i, fd := range a.doorbell {
		if fd >= 0 {
			unix.Close(fd)
			a.doorbell[i] = -1
		}
	}
}

// detach moves a connection back to TCP. When it returns, no byte goes by its rings any
// more, even if they were removed before. Any process that has the socket may ask.
func (b *Broker) detach(fd int) error {
	if fd < 0 {
		return unix.EBADF
	}
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return fmt.Errorf("look at a socket: %w", err)
	}
	k, was := b.detachOf(cookie)
	if k != nil {
		if err := k.Quiesce(); err != nil {
			return fmt.Errorf("wait for calls of the program: %w", err)
		}
	}
	if !was {
		return fmt.Errorf("no such connection is attached: %w", unix.EBADF)
	}
	return nil
}

// detachOf detaches the connection of a TCP socket, and says whether there was one.
// It returns the program that may be at work still, if there is any.
func (b *Broker) detachOf(cookie uint64) (_ *bpf.Program, was bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.connections {
		if c.attached && (c.ends[0].cookie == cookie || c.ends[1].cookie == cookie) {
			c.detach()
			return b.program, true
		}
	}
	return b.program, false
}

// errRulesChanged makes a process attach again: the rules have changed since its request.
var errRulesChanged = fmt.Errorf("the network's rules have changed meanwhile: %w", unix.ESTALE)

// detachAll moves all attached connections back to TCP, under the current rules.
func (b *Broker) detachAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.attach.round++
	for _, a := range b.attach.waiting {
		a.err = errRulesChanged
		engine.Signal(a.doorbell[1])
	}
	clear(b.attach.waiting)
	for c := range b.connections {
		if c.attached {
			c.detach()
		}
	}
}
