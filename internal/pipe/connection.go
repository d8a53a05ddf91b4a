package pipe

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/bpf"
	"github.com/scon-project/scon/internal/pipe/engine"
	"github.com/scon-project/scon/internal/pipe/sealed"
	unixengine "github.com/scon-project/scon/internal/pipe/unix"
)

// connection joins two ends. The broker's lock guards all of it.
type connection struct {
	b      *Broker
	number uint64
	engine Engine
	begun  time.Time
	ends   [2]*end // the client's, the server's
	name   netip.AddrPort
	to     *name    // where it arrived
	held   []charge // of the memory limit
	over   bool
	died   bool // not both ends have left in good order

	// tcp are the two sockets of the connection's own TCP, by which it proves itself.
	// They do not change.
	tcp      [2]*tcpSocket
	checking bool // a proof is under way
	again    bool // rules have changed since it began

	carriage engine.Carriage // of the engine copier; nil: there is none

	// attached: a TCP connection of the processes exists beside it and reports EOF.
	attached bool
}

// end is what one process has of a connection.
type end struct {
	engine.End
	connection *connection
	owner      *session // of the server's end, the listener's until it is accepted
	party      Party
	addr       netip.AddrPort // its own, as its TCP socket has it
	sees       netip.AddrPort // the peer's, likewise
	sentUnix   uint64         // bytes that it says to have sent when it closes, of the engine unix
	messages   uint32         // likewise
	left       bool
	id         uint32 // its owner's number of it, of an attached one
	cookie     uint64 // of its TCP socket, likewise
}

// charge is memory that counts against a container's share.
type charge struct {
	netns uint64
	bytes int64
}

func newEnd(c *connection, owner *session, addr, sees netip.AddrPort) *end {
	return &end{
		End:        engine.End{Netns: owner.party.Netns, Doorbell: -1},
		connection: c, owner: owner, party: owner.party, addr: addr, sees: sees,
	}
}

// connect makes a connection of the process's own TCP connection to a name, and puts
// the other end into the name's backlog.
func (s *session) connect(r request) (answer reply, err error) {
	b := s.b
	client, err := s.takeTCP(r.file, false)
	if err != nil {
		return answer, fmt.Errorf("take a TCP connection: %w", err)
	}
	tcp := [2]*tcpSocket{client}
	defer func() {
		if err != nil {
			closeTCP(tcp)
		}
	}()
	if !b.someoneListens(client.peer.Port()) {
		b.refuse("no such name")
		return answer, fmt.Errorf("nobody listens on port %d: %w", client.peer.Port(), unix.ECONNREFUSED)
	}
	var n *name
	if n, tcp[1], err = b.proofs.find(client); err != nil {
		b.refuse("network")
		return answer, err
	}
	c := &connection{b: b, begun: time.Now(), name: client.peer, to: n}
	c.ends[0] = newEnd(c, s, client.local, client.peer)
	c.ends[1] = newEnd(c, n.owner, tcp[1].local, tcp[1].peer)
	if !b.allows(c.ends) {
		b.refuse("allow list")
		return answer, fmt.Errorf("%v to %v is not in the allow list: %w", client.local, client.peer, unix.EACCES)
	}
	d := near
	if mustChoose(r.Engines & n.engines) {
		d = b.distances.between(s.party.PID, n.owner.party.PID, n.sendsSmall())
	}
	if err := c.begin(r.Engines, n.engines, d); err != nil {
		return answer, err
	}
	// Without the lock: the kernel may take milliseconds.
	err = c.open()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		c.tcp = tcp
		answer, err = c.join(s, n)
	}
	if err != nil {
		c.free()
	}
	return answer, err
}

// begin chooses the engine and charges the memory.
func (c *connection) begin(client, server engineSet, d distance) (err error) {
	b := c.b
	b.mu.Lock()
	defer b.mu.Unlock()
	b.loadProgram(client & server)
	if c.engine = b.choose(client&server, d); c.engine == 0 {
		b.counts.Refused["engine"]++
		return fmt.Errorf("engines %s and %s have none in common: %w", client, server, unix.EPROTONOSUPPORT)
	}
	for _, e := range c.ends {
		err := c.charge(e.party.Netns, c.engine.rings()*engine.SmallestRing)
		if err == nil {
			continue
		}
		c.free()
		if (client & server).has(Unix) {
			c.engine = Unix // which takes none
			return nil
		}
		b.counts.Refused["memory"]++
		return err
	}
	return nil
}

// join gives the client its end, and puts the other one into the backlog. The
// lock is held.
func (c *connection) join(s *session, n *name) (answer reply, err error) {
	b := c.b
	id, err := s.newID()
	if err != nil {
		return answer, err
	}
	answer = c.ends[0].reply(id)
	if err := keep(&answer, nil); err != nil {
		return reply{}, err
	}
	if err := n.enqueue(c.ends[1]); err != nil {
		answer.taken()
		b.counts.Refused["backlog"]++
		return reply{}, err
	}
	s.ends[id] = c.ends[0]
	b.counts.Connections++
	c.number = b.counts.Connections
	b.connections[c] = true
	return answer, nil
}

// someoneListens reports whether a name has the port: no token is sent to other
// programs' ports.
func (b *Broker) someoneListens(port uint16) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n := range b.names {
		if n.addr.Port() == port && n.ready != nil {
			return true
		}
	}
	return false
}

// allows applies the operator's list: all addresses that the kernel has for the two TCP
// sockets, before and after any translation, have to be in one group.
func (b *Broker) allows(ends [2]*end) bool {
	for _, group := range b.opts.Allow {
		if group.Contains(ends[0].addr.Addr()) && group.Contains(ends[0].sees.Addr()) &&
			group.Contains(ends[1].addr.Addr()) && group.Contains(ends[1].sees.Addr()) {
			return true
		}
	}
	return len(b.opts.Allow) == 0
}

// has reports whether an engine works here. The lock is held.
func (b *Broker) has(e Engine) bool {
	switch e {
	case BPF:
		return b.noProgram == nil
	case Copier:
		return b.copier != nil
	}
	return true
}

// loadProgram loads the engine bpf on first use.
func (b *Broker) loadProgram(wanted engineSet) {
	if !wanted.has(BPF) || b.program != nil || b.noProgram != nil {
		return
	}
	if b.program, b.noProgram = bpf.New(b.log, &b.mu); b.noProgram != nil {
		b.log.Error("the pipe's engine bpf is not available", "error", b.noProgram)
	}
}

// open makes doorbells and memory. It is called without the lock.
func (c *connection) open() (err error) {
	ends := [2]*engine.End{&c.ends[0].End, &c.ends[1].End}
	switch c.engine {
	case Copier:
		c.carriage, err = c.b.copier.Open(ends, c.lost)
		return err
	case Unix:
		return unixengine.Open(ends)
	}
	if !c.attached {
		pair, err := engine.Doorbells()
		if err != nil {
			return err
		}
		ends[0].Doorbell, ends[1].Doorbell = pair[0], pair[1]
	}
	if c.engine == BPF {
		return c.b.program.Open(ends)
	}
	return sealed.Open(ends)
}

// reply returns an end's addresses, engine and files.
func (e *end) reply(id uint32) reply {
	files, size := e.Memory.Files()
	return reply{
		ID: id, Engine: e.connection.engine, Peer: e.sees, Local: e.addr, Size: size,
		files: append([]int{e.Doorbell}, files...),
	}
}

// sent is how many bytes the end says to have sent.
func (e *end) sent() uint64 {
	if e.connection.engine == Unix { // which nobody counts but the process
		return e.sentUnix
	}
	return e.Memory.Sent()
}

func (e *end) peer() *end {
	if e == e.connection.ends[0] {
		return e.connection.ends[1]
	}
	return e.connection.ends[0]
}

// grow enlarges the ring that an end sends to.
func (e *end) grow(wanted uint64) (answer reply, err error) {
	c := e.connection
	size, before := ringSize(wanted), e.Memory.Size()
	if c.over || size <= before {
		return answer, unix.EINVAL
	}
	// The old ring stays until the receiver has read it.
	if err := c.charge(e.party.Netns, c.engine.rings()*int64(size)); err != nil {
		c.b.counts.Refused["memory"]++
		return answer, err
	}
	answer.files, answer.Generation, err = e.Memory.Grow(size)
	if err != nil {
		c.b.discharge(c.held[len(c.held)-1])
		c.held = c.held[:len(c.held)-1]
		return reply{}, err
	}
	answer.Size = size
	c.b.counts.Grown++
	return answer, nil
}

// charge counts memory against the limit and the container's half.
func (c *connection) charge(netns uint64, bytes int64) error {
	b := c.b
	if b.used+bytes > b.opts.MemoryLimit || b.usedBy[netns]+bytes > b.opts.MemoryLimit/2 {
		return fmt.Errorf("%d of %d bytes for rings are used: %w", b.used, b.opts.MemoryLimit, unix.ENOBUFS)
	}
	b.used += bytes
	b.usedBy[netns] += bytes
	c.held = append(c.held, charge{netns, bytes})
	return nil
}

func (b *Broker) discharge(h charge) {
	b.used -= h.bytes
	if b.usedBy[h.netns] -= h.bytes; b.usedBy[h.netns] == 0 {
		delete(b.usedBy, h.netns)
	}
}

// leave closes one end: its peer can still read what it has sent.
func (c *connection) leave(e *end) {
	e.left = true
	c.notifyPeer(e)
	if c.attached {
		c.detach()
	} else if e.peer().left {
		c.free()
	}
}

// abort notifies the peer of a process that has died.
func (c *connection) abort() {
	for _, e := range c.ends {
		if e.owner.over && !e.left {
			e.left, c.died = true, true
			c.notifyPeer(e)
		}
	}
}

// settle releases an aborted connection.
func (c *connection) settle() {
	if c.attached {
		c.detach()
	} else if c.ends[0].left && c.ends[1].left {
		c.free()
	}
}

// detach ends an attached connection for both: what was sent is in the memory
// that the other end has mapped, and what it sends goes by TCP.
func (c *connection) detach() {
	c.hangUp()
	for _, e := range c.ends {
		delete(e.owner.ends, e.id)
	}
	c.free()
}

// notifyPeer tells the peer that an end has left.
func (c *connection) notifyPeer(e *end) {
	if c.carriage == nil {
		c.hangUp()
		return
	}
	c.over = true
	if e == c.ends[0] {
		c.carriage.Leave(0)
	} else {
		c.carriage.Leave(1)
	}
}

// reset ends the connection at once.
func (c *connection) reset() {
	c.died = true
	if c.carriage != nil {
		c.over = true
		c.carriage.HangUp()
		return
	}
	for _, e := range c.ends {
		e.Memory.Stop()
	}
	c.hangUp()
}

// lost is called when the engine has ended the connection.
func (c *connection) lost() {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	c.over, c.died = true, true
}

// hangUp shuts both doorbells down.
func (c *connection) hangUp() {
	if !c.over {
		c.over = true
		_ = unix.Shutdown(c.ends[0].Doorbell, unix.SHUT_RDWR)
	}
}

// free releases everything.
func (c *connection) free() {
	var bytes, messages uint64
	for _, e := range c.ends {
		if e.Memory != nil {
			c.b.counts.Bytes += e.sent()
			if e.messages > 0 {
				bytes, messages = bytes+e.sent(), messages+uint64(e.messages)
			}
		}
	}
	if c.to != nil && messages >= fewestMessages {
		c.to.message = bytes / messages
	}
	for _, e := range c.ends {
		if e.Memory != nil {
			e.Memory.Close()
			e.Memory = nil
		}
		if e.Doorbell >= 0 {
			unix.Close(e.Doorbell)
			e.Doorbell = -1
		}
	}
	if c.carriage != nil {
		c.carriage.Forget()
	}
	for _, h := range c.held {
		c.b.discharge(h)
	}
	c.held = nil
	closeTCP(c.tcp)
	delete(c.b.connections, c)
}

func closeTCP(sockets [2]*tcpSocket) {
	for _, t := range sockets {
		if t != nil {
			t.close()
		}
	}
}
