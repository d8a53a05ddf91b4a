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
	"github.com/scon-project/scon/internal/pipe/sealed"
	unixengine "github.com/scon-project/scon/internal/pipe/unix"
)

// connection joins two ends. The broker's lock guards all of it.
type connection struct {
	b       *Broker
	number  uint64
	engine  Engine
	begun   time.Time
	ends    [2]*end // the client's, the server's
	name    netip.AddrPort
	to      *name        // of the server
	first   int64        // size of its first rings in bytes
	pools   [2]*bpf.Pool // that the ends receive from; nil: from rings of their own
	held    []charge     // of the memory limit
	over    bool         // the doorbells are shut down
	died    bool         // an end did not close it
	ended   bool         // its engine delivers nothing any more
	counted bool         // in the totals

	// tcp are the two sockets of the connection's own TCP, client's and server's. Constant.
	tcp      [2]*tcpSocket
	proven   time.Time
	checking bool            // a proof is in progress
	again    bool            // rules have changed since it began
	paused   bool            // until a proof that a change of rules began succeeds
	still    <-chan struct{} // closed once no copy of carriage is in progress; while it is paused

	carriage engine.Carriage // of the engine copier, else nil

	// attached: it replaces a TCP connection of the processes, which remains and reports EOF.
	attached bool
}

// end is one process's end of a connection.
type end struct {
	engine.End
	connection *connection
	owner      *session // the listener's session until the server's end is accepted
	party      Party
	addr       netip.AddrPort // of its TCP socket
	sees       netip.AddrPort // peer's address, as its TCP socket has it
	sentUnix   uint64         // bytes sent, reported at close; engine unix only
	messages   uint32         // sent, reported at close
	left       bool           // closed, or its process has ended
	files      int64          // charged to its owner
	id         uint32         // handle in its owner's session; attached ends only
	ownRings   bool           // its process cannot receive from a pool; attached ends only
	cookie     uint64         // of its TCP socket; attached ends only
}

// charge is memory that counts against an owner's share.
type charge struct {
	owner quota.Owner
	bytes int64
}

func newEnd(c *connection, owner *session, addr, sees netip.AddrPort) *end {
	return &end{
		End:        engine.End{Netns: owner.party.Netns, Owner: owner.owner.Account(), Limit: owner.limit, CloseFD: owner.closeFD, Doorbell: -1},
		connection: c, owner: owner, party: owner.party, addr: addr, sees: sees,
	}
}

// connect makes a connection beside the process's own TCP connection to a name, and adds
// the server's end to the name's backlog.
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
	if !b.listens(client.peer.Port()) {
		b.refuse("no such name")
		b.tellAbsence(s.owner)
		return answer, fmt.Errorf("no name listens on port %d: %w", client.peer.Port(), unix.ECONNREFUSED)
	}
	b.mu.Lock()
	changes := b.changes
	b.mu.Unlock()
	if err := b.awaitStill(time.Now().Add(leastPatience)); err != nil { // no copy may carry its token
		return answer, err
	}
	var n *name
	if n, tcp[1], err = b.proofs.find(client); err != nil {
		b.refuse("network")
		return answer, err
	}
	c := &connection{b: b, begun: time.Now(), proven: time.Now(), name: client.peer, to: n}
	c.ends[0] = newEnd(c, s, client.local, client.peer)
	c.ends[1] = newEnd(c, n.owner, tcp[1].local, tcp[1].peer)
	if !b.allows(c.ends) {
		b.refuse("allow list")
		return answer, fmt.Errorf("%v to %v is not in the allow list: %w", client.local, client.peer, unix.EACCES)
	}
	d := near
	if mustChoose(b.allowed(r.Engines & n.engines)) {
		d = b.distances.between(s.party.PID, n.owner.party.PID, n.sendsSmall())
	}
	for _, e := range c.ends {
		e.owner.awaitRings()
	}
	if err := c.begin(r.Engines, n.engines, d); err != nil {
		return answer, err
	}
	// Without the lock: open can take milliseconds.
	err = c.open()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		c.tcp = tcp
		answer, err = c.join(s, n)
	}
	if err == nil {
		c.proveLate(changes)
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
	c.joinPools()
	err = c.chargeRings()
	if err != nil && (client & server).has(Unix) && b.has(Unix) {
		c.leavePools()
		c.engine, err = Unix, nil // needs no ring
	}
	if err != nil {
		b.counts.Refused[quota.Memory.String()]++
	}
	for _, e := range c.ends {
		if err == nil {
			err = e.takeFiles(c.engine.filesOfEnd())
		}
	}
	if err != nil {
		c.free()
	}
	return err
}

// chargeRings charges the first rings of both ends, or none. It sets their size, which is that of
// a pool's rings if one of them is.
func (c *connection) chargeRings() (err error) {
	if c.attached && !c.isPooled() && c.b.mayHave(attachedRing) {
		if c.first, err = attachedRing, c.chargeFirst(); err == nil {
			return nil
		}
	}
	c.first = engine.SmallestRing
	return c.chargeFirst()
}

func (c *connection) chargeFirst() error {
	for _, e := range c.ends {
		if err := c.charge(e.owner.owner, c.engine.rings()*c.first); err != nil {
			c.dischargeAll()
			return err
		}
	}
	return nil
}

// holdsTCP reports whether the connection has a TCP socket for each end.
func (c *connection) holdsTCP() bool { return c.tcp[0] != nil }

// join returns the client's end and adds the server's end to the backlog. The lock is
// held.
func (c *connection) join(s *session, n *name) (answer reply, err error) {
	b := c.b
	id, err := s.newID()
	if err != nil {
		return answer, err
	}
	answer = c.ends[0].reply(id)
	if err := s.keep(&answer, nil); err != nil {
		return reply{}, err
	}
	if err := n.enqueue(c.ends[1]); err != nil {
		closeAll(answer.files) // of which the connection has others
		b.counts.Refused["backlog"]++
		return reply{}, err
	}
	s.ends[id] = c.ends[0]
	b.counts.Connections++
	c.number = b.counts.Connections
	b.connections[c] = true
	c.recountBoth()
	return answer, nil
}

// listens reports whether a name listens on the port. No token is sent to other programs'
// ports.
func (b *Broker) listens(port uint16) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n := range b.names {
		if n.addr.Port() == port && n.ready != nil {
			return true
		}
	}
	return false
}

// tellAbsence delays the answer that no name listens on a port, which is news of other
// containers: a container gets few such answers in the time of a proof.
func (b *Broker) tellAbsence(o quota.Owner) {
	if b.absences.Enter(o, time.Now().Add(proofPatience)) {
		time.AfterFunc(proofPatience, func() { b.absences.Leave(o) })
	}
}

// allows applies pipe.allow: all addresses of the two TCP sockets, before and after
// translation, must be in one group.
func (b *Broker) allows(ends [2]*end) bool {
	for _, group := range b.opts.Allow {
		if group.Contains(ends[0].addr.Addr()) && group.Contains(ends[0].sees.Addr()) &&
			group.Contains(ends[1].addr.Addr()) && group.Contains(ends[1].sees.Addr()) {
			return true
		}
	}
	return len(b.opts.Allow) == 0
}

// allowsEngine reports whether the settings allow an engine.
func (b *Broker) allowsEngine(e Engine) bool {
	return b.opts.Engines == nil || slices.Contains(b.opts.Engines, e)
}

// allowed returns those of a set that the settings allow.
func (b *Broker) allowed(s engineSet) (allowed engineSet) {
	for e := Sealed; e <= lastEngine; e++ {
		if s.has(e) && b.allowsEngine(e) {
			allowed |= 1 << e
		}
	}
	return allowed
}

// has reports whether an engine is allowed and works here. The lock is held.
func (b *Broker) has(e Engine) bool {
	if !b.allowsEngine(e) {
		return false
	}
	switch e {
	case BPF:
		return b.programs.err == nil
	case Copier:
		return b.copier != nil
	}
	return true
}

// loadProgram loads the engine bpf on first use. The lock is held.
func (b *Broker) loadProgram(wanted engineSet) {
	if !wanted.has(BPF) || b.program != nil || !b.allowsEngine(BPF) || !b.programs.due(time.Now()) {
		return
	}
	p, err := b.newProgram()
	if b.programs.done(err, time.Now()); err != nil {
		b.log.Error("the pipe's engine bpf is not available", "error", err, "retry", b.programs.pause)
		return
	}
	b.program = p
}

// open makes doorbells and memory. The lock is not held.
func (c *connection) open() (err error) {
	ends := [2]*engine.End{&c.ends[0].End, &c.ends[1].End}
	switch c.engine {
	case Copier:
		c.carriage, err = c.b.copier.Open(ends, c.lost)
		return err
	case Unix:
		return unixengine.Open(ends)
	}
	if c.engine == BPF {
		return c.b.program.Open(ends, uint64(c.first), c.pools)
	}
	return sealed.Open(ends)
}

// reply returns an end's addresses, engine and files.
func (e *end) reply(id uint32) reply {
	files, size := e.Memory.Files()
	answer := reply{
		ID: id, Engine: e.connection.engine, Peer: e.sees, Local: e.addr, Size: size,
		files: append([]int{e.Doorbell}, files...),
	}
	if m, ok := e.Memory.(*bpf.Memory); ok && m.IsPooled() {
		answer.Generation = bpf.InPool
	}
	return answer
}

// sent returns the bytes that the end reports as sent.
func (e *end) sent() uint64 {
	if e.connection.engine == Unix { // counted by the process only
		return e.sentUnix
	}
	return e.Memory.Sent()
}

func (e *end) closeDoorbell() {
	if e.connection.engine == BPF { // it passes no files
		unix.Close(e.Doorbell)
	} else {
		e.owner.closeFD(e.Doorbell)
	}
	e.Doorbell = -1
}

func (e *end) peer() *end {
	if e == e.connection.ends[0] {
		return e.connection.ends[1]
	}
	return e.connection.ends[0]
}

// grow enlarges the ring that an end sends to, with the engine bpf the one that it receives
// from.
func (e *end) grow(wanted uint64) (answer reply, err error) {
	c := e.connection
	size, before := ringSize(wanted), e.Memory.Size()
	if c.over || size <= before {
		return answer, unix.EINVAL
	}
	if c.attached && !c.b.mayHave(size) {
		return answer, unix.ENOBUFS
	}
	// The old ring is released after the receiver has read it.
	if err := c.charge(e.owner.owner, c.engine.rings()*int64(size)); err != nil {
		c.b.counts.Refused[quota.Memory.String()]++
		return answer, err
	}
	if err := e.takeFiles(filesOfRing); err != nil { // the caller recounts the files
		c.dischargeLast()
		return answer, err
	}
	answer.files, answer.Generation, err = e.Memory.Grow(size)
	if err != nil {
		c.dischargeLast()
		return reply{}, err
	}
	answer.Size = size
	c.b.counts.Grown++
	return answer, nil
}

// charge counts memory against an owner's share.
func (c *connection) charge(o quota.Owner, bytes int64) error {
	if err := c.b.ledger.Take(o, quota.Memory, bytes); err != nil {
		return err
	}
	c.held = append(c.held, charge{o, bytes})
	return nil
}

// dischargeLast returns the last charge.
func (c *connection) dischargeLast() {
	last := len(c.held) - 1
	c.b.discharge(c.held[last])
	c.held = c.held[:last]
}

// dischargeAll returns all charges.
func (c *connection) dischargeAll() {
	for _, h := range c.held {
		c.b.discharge(h)
	}
	c.held = nil
}

func (b *Broker) discharge(h charge) { b.ledger.Give(h.owner, quota.Memory, h.bytes) }

// leave closes one end. Its peer can still read what it has sent.
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

// detach ends an attached connection for both ends. Bytes in the rings stay readable in
// the memory that the other end has mapped; later ones go by TCP.
func (c *connection) detach() {
	c.cut()
	c.free()
}

// cut is detach without the release of memory and files, which takes most of its time.
func (c *connection) cut() {
	c.hangUp()
	for _, e := range c.ends {
		delete(e.owner.ends, e.id)
	}
	c.ends[0].Memory.Stop()
	c.count()
	delete(c.b.connections, c)
}

// notifyPeer wakes the peer of an end that has left.
func (c *connection) notifyPeer(e *end) {
	if c.attached {
		if err := e.Memory.(*bpf.Memory).Ended(); err != nil {
			c.b.log.Error("pipe: an end may not notice that its peer has left bytes unread", "error", err)
		}
	}
	if c.carriage == nil {
		c.hangUp()
		e.Memory.Stop() // the other end may keep its memory as long as it likes
		return
	}
	c.over = true
	if e == c.ends[0] {
		c.carriage.Leave(0)
	} else {
		c.carriage.Leave(1)
	}
}

// reset ends the connection at once: no further byte is delivered by the engine.
func (c *connection) reset() {
	c.died, c.ended = true, true
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

// lost is called when the engine copier has ended the connection.
func (c *connection) lost() {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	c.over, c.died, c.ended = true, true, true
}

// hangUp shuts both doorbells down.
func (c *connection) hangUp() {
	if !c.over {
		c.over = true
		_ = unix.Shutdown(c.ends[0].Doorbell, unix.SHUT_RDWR)
	}
}

// count adds what the ends have sent to the totals, once.
func (c *connection) count() {
	if c.counted {
		return
	}
	c.counted = true
	for _, e := range c.ends {
		if e.Memory != nil {
			c.b.counts.Bytes += e.sent()
		}
	}
}

// free releases the connection and all that it holds.
func (c *connection) free() {
	c.count()
	var bytes, messages uint64
	for _, e := range c.ends {
		if e.Memory != nil && e.messages > 0 {
			bytes, messages = bytes+e.sent(), messages+uint64(e.messages)
		}
	}
	if c.to != nil && messages >= fewestMessages {
		c.to.message = bytes / messages
	}
	c.keepUnread()
	for _, e := range c.ends {
		if e.Memory != nil {
			e.Memory.Close()
			e.Memory = nil
		}
		if e.Doorbell >= 0 {
			e.closeDoorbell()
		}
	}
	c.leavePools()
	if c.carriage != nil {
		c.carriage.Forget()
	}
	c.dischargeAll()
	for _, e := range c.ends {
		c.b.ledger.Give(e.owner.owner, quota.Files, e.files)
		e.files = 0
	}
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
