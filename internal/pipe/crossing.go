package pipe

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/engine"
	"github.com/scon-project/scon/internal/pipe/quota"
)

// A crossing is the proof of a connection under "scon run": bytes that the broker has
// just chosen cross its own TCP, from either end to the other one.
//
//  1. Both ends have come (attach.go). Not many crossings are under way at a time, and
//     containers take turns; the others wait, and their bytes go by TCP meanwhile.
//  2. Each end gets the mark of both tokens and the nonce of its own, and looks for the
//     other end's token from then on (attached).
//  3. An end says that it sends its token, the second one by 2. The other end reads that in
//     its notice, and looks for the mark in all that it receives. Then the token is sent, and
//     TCP goes on (token).
//  4. An end that finds the mark asks the broker to look at its socket. The broker
//     compares the token there, without receiving it (arrived).
//  5. When both have arrived, in time and under unchanged rules, the broker makes the
//     memory and the doorbells (establish), which the ends get (proven).
//
// Until 5, the broker tells an end of the other one only that it has come, looks, sends,
// and has gone: four bits, of crossings of which mostCrossings are before 5 at a time. One
// that fails keeps its place among those until its deadline. So two ends that no network
// joins do not learn a nonce by the broker within that time.
type crossing struct {
	b         *Broker
	ends      [2]*attachment // the client's, the server's
	mark      [len(wireToken{}.Mark)]byte
	exchange  *exchange     // nonces; nil before it has begun
	notices   [2]noticeFile // what each end reads; valid once it has begun
	looks     [2]bool       // each end looks for the other one's token
	announced [2]bool       // the other end knows that this one sends its token
	arrived   [2]bool       // the token of this end has been seen at the other one
	asked     [2]int        // how often this end had the broker look at its socket
	proven    bool
	cancel    func()      // of what waits for the gate
	admitted  bool        // it counts among those under way until it is over
	late      *time.Timer // nil until it has begun
	over      bool
	changed   bool // rules have changed since it began
	made      *connection
}

// owner pays for the crossing.
func (c *crossing) owner() quota.Owner { return c.ends[0].owner.owner }

// await begins the crossing when the gate admits it. The lock is held.
func (c *crossing) await() {
	b := c.b
	b.attach.crossings[c] = true
	c.cancel = b.crossings.Start(c.owner(), func() {
		if b.ctx.Err() == nil {
			b.running.Go(c.begin)
		}
	})
}

// begin chooses the tokens, and tells both ends that there is something to get.
func (c *crossing) begin() {
	b := c.b
	b.mu.Lock()
	if c.admitted = !c.over; c.over {
		b.crossings.Leave(c.owner())
		b.mu.Unlock()
		return
	}
	b.mu.Unlock()
	err := b.awaitStill(time.Now().Add(proofPatience))
	if err == nil {
		err = b.quiesce() // for connections that were detached
	}
	exchange := newExchange(time.Now().Add(proofPatience))
	notices := [2]noticeFile{-1, -1}
	for i := range notices {
		if err == nil {
			notices[i], err = newNotice(&exchange.tokens[i])
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	c.notices = notices
	if err == nil && !b.allowsAttached(c.ends) {
		b.counts.Refused["allow list"]++
		err = unix.EACCES
	}
	if err != nil || c.over {
		c.fail(err)
		c.closeNotices()
		return
	}
	_, _ = io.ReadFull(b.random, c.mark[:]) // does not fail
	c.exchange = exchange
	c.late = time.AfterFunc(proofPatience, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if !c.proven && !c.over {
			b.counts.Refused["network"]++
			c.fail(errLate)
		}
	})
	for _, a := range c.ends {
		a.tell()
	}
}

var errLate = fmt.Errorf("the tokens have not arrived in time: %w", unix.ESTALE)

// quiesce waits until no run of the program copies for connections that were detached.
func (b *Broker) quiesce() error {
	b.mu.Lock()
	k := b.program
	b.mu.Unlock()
	return k.Quiesce()
}

// allowsAttached is allows for two attachments.
func (b *Broker) allowsAttached(both [2]*attachment) bool {
	var ends [2]*end
	for i, a := range both {
		ends[i] = &end{addr: a.local, sees: a.peer}
	}
	return b.allows(ends)
}

// fail ends a crossing without a connection: both ends stay on TCP. The lock is held.
func (c *crossing) fail(err error) {
	if c.over {
		return
	}
	if err != nil {
		c.b.log.Debug("pipe: attach", "error", err)
	}
	for _, a := range c.ends {
		if a.err == nil {
			a.err = err
		}
		a.close()
	}
	c.finish()
}

// leave takes an end out. The other end does not learn of that before the crossing is
// admitted: it waits again. The lock is held.
func (c *crossing) leave(a *attachment, err error) {
	if c.over || c.admitted {
		c.fail(err)
		return
	}
	a.err = err
	a.close()
	c.finish()
	other := c.ends[1-a.side]
	other.crossing = nil
	c.b.attach.wait(other)
}

// finish makes room for the next one, after a failure that the ends can bring about at the
// deadline. The lock is held.
func (c *crossing) finish() {
	c.over = true
	if c.late != nil {
		c.late.Stop()
		c.closeNotices()
	}
	delete(c.b.attach.crossings, c)
	if !c.admitted {
		c.cancel()
		return
	}
	for _, a := range c.ends {
		c.b.attach.release(a)
	}
	if c.proven { // it has left, and establish runs or will
		return
	}
	leave := func() { c.b.crossings.Leave(c.owner()) }
	if c.exchange != nil && !c.changed {
		time.AfterFunc(time.Until(c.exchange.deadline), leave)
	} else {
		leave()
	}
}

func (c *crossing) closeNotices() {
	for i, n := range c.notices {
		if n >= 0 {
			unix.Close(int(n))
			c.notices[i] = -1
		}
	}
}

// begun returns the crossing of one of the session's attachments, which has its
// tokens. The lock is held.
func (s *session) begun(id uint32) (*attachment, *crossing, error) {
	a := s.attachments[id]
	switch {
	case a == nil:
		return nil, nil, unix.EBADF
	case a.err != nil:
		return nil, nil, a.err
	case a.crossing == nil || a.crossing.late == nil:
		return nil, nil, unix.EAGAIN
	}
	return a, a.crossing, nil
}

// attached gives an end its token. From now on it looks for the other end's. If that one looks
// already, and this one has room, it sends its token next.
func (s *session) attached(r request) (answer reply, err error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	a, c, err := s.begun(r.ID)
	if err == nil && c.over {
		err = errLate
	}
	if err != nil {
		return answer, err
	}
	answer = reply{
		ID: r.ID, Engine: BPF, files: []int{int(c.notices[a.side])}, Generation: uint32(1 - a.side),
		Peer: netip.AddrPortFrom(netip.AddrFrom16(c.mark), 0),
	}
	if err := s.keep(&answer, nil); err != nil {
		return reply{}, err
	}
	c.looks[a.side] = true
	c.notices[1-a.side].tell(unsafe.Offsetof(wireNotice{}.Looks))
	if r.Arg == hasRoom && c.looks[1-a.side] && !c.announced[a.side] {
		c.announce(a)
		answer.Size = 1
	}
	c.ends[1-a.side].tell()
	return answer, nil
}

// mayPool is the argument of opAttach of a process that can receive from a pool.
const mayPool = 1

// hasRoom is the argument of an end whose socket has room for its token.
const hasRoom = 1

// announce records that an end sends its token, and tells the other one.
func (c *crossing) announce(a *attachment) {
	c.announced[a.side] = true
	c.notices[a.side].tell(unsafe.Offsetof(wireNotice{}.Told))
	c.notices[1-a.side].tell(unsafe.Offsetof(wireNotice{}.Sends))
}

// token tells the other end that this one sends its token.
func (s *session) token(id uint32) error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	a, c, err := s.begun(id)
	switch {
	case err != nil:
		return err
	case c.over:
		return errLate
	case !c.looks[1-a.side]:
		return unix.EAGAIN
	case c.announced[a.side]:
		return unix.EALREADY
	}
	c.announce(a)
	return nil
}

// attachedSocket checks that a descriptor is the socket of one of the session's
// attachments.
func (s *session) attachedSocket(r request) (*attachment, *crossing, error) {
	if r.file < 0 {
		return nil, nil, unix.EBADF
	}
	cookie, err := s.ownSocket(r.file)
	if err != nil {
		return nil, nil, err
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	a, c, err := s.begun(r.ID)
	if err != nil {
		return nil, nil, err
	}
	if c.asked[a.side]++; a.cookie != cookie || c.asked[a.side] > mostAsked {
		return nil, nil, errOtherSocket
	}
	return a, c, nil
}

var errOtherSocket = fmt.Errorf("that is another socket than the one attached: %w", unix.EBADF)

// mostAsked bounds how often an end may have the broker look at its socket, which takes
// time. The bytes before a token may be as many as tokenReach.
const mostAsked = 1024

// arrived looks for the other end's token in what a socket has received.
func (s *session) arrived(r request) error {
	a, c, err := s.attachedSocket(r)
	if err != nil {
		return err
	}
	if r.Size > tokenReach {
		return unix.EINVAL
	}
	got := make([]byte, unsafe.Sizeof(wireToken{}))
	passed := make([]byte, min(r.Size, 64<<10)) // by what precedes the token, again and again
	var buffers [][]byte
	for left := r.Size; left > 0; left -= uint64(len(buffers[len(buffers)-1])) {
		buffers = append(buffers, passed[:min(left, uint64(len(passed)))])
	}
	if err := s.guard(time.Now().Add(callPatience), func() error {
		n, _, _, _, err := unix.RecvmsgBuffers(r.file, append(buffers, got), nil, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if err == nil && n < int(r.Size)+len(got) {
			err = unix.EAGAIN
		}
		return err
	}); err != nil {
		return err
	}
	from := 1 - a.side
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if c.over {
		return errLate
	}
	if !c.announced[from] || !bytes.Equal(got[:len(c.mark)], c.mark[:]) || !c.exchange.matches(from, got[len(c.mark):]) {
		c.fail(errOtherBytes)
		return errOtherBytes
	}
	c.arrived[from] = true
	if c.arrived[1-from] && !c.proven {
		c.prove()
	}
	return nil
}

// prove records that both tokens have arrived. From now on the network is known to join the ends,
// so the crossing leaves its place to another one; the memory, which waits for running programs,
// has places of its own. The lock is held.
func (c *crossing) prove() {
	b := c.b
	c.proven = true
	b.crossings.Leave(c.owner())
	b.makings.Start(c.owner(), func() { b.running.Go(c.establish) })
}

// establish makes the connection that two ends have proven.
func (c *crossing) establish() {
	b := c.b
	defer b.makings.Leave(c.owner())
	if c.isOver() { // while it waited
		return
	}
	conn := &connection{b: b, begun: time.Now(), proven: time.Now(), name: c.ends[1].local, attached: true}
	for i, a := range c.ends {
		conn.ends[i] = newEnd(conn, a.owner, a.local, a.peer)
		conn.ends[i].id, conn.ends[i].cookie, conn.ends[i].ownRings = a.id, a.cookie, a.ownRings
		if !a.ownRings {
			a.owner.makeRings()
		}
	}
	err := conn.prepare()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil && c.over {
		err = errDetached // or the rules have changed
	}
	if err != nil {
		conn.free()
		c.fail(err)
		return
	}
	c.made = conn
	b.counts.Connections++
	conn.number = b.counts.Connections
	b.connections[conn] = true
	for i, a := range c.ends {
		c.notices[i].tell(unsafe.Offsetof(wireNotice{}.Proven))
		a.tell()
	}
	c.finish()
}

func (c *crossing) isOver() bool {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	return c.over
}

// prepare makes the memory and the doorbells of an attached connection.
func (c *connection) prepare() error {
	if err := c.begin(1<<BPF, 1<<BPF, near); err != nil {
		return err
	}
	return c.open()
}

// proven gives an end its doorbell, page and ring, and the broker's end of its alert, which it
// closes once the doorbell is in the alert's place.
func (s *session) proven(id uint32) (answer reply, err error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	a, c, err := s.begun(id)
	if err != nil {
		return answer, err
	}
	if c.made == nil {
		return answer, unix.EAGAIN
	}
	if !s.b.connections[c.made] {
		return answer, unix.ECONNRESET // it is over again
	}
	e := c.made.ends[a.side]
	answer = e.reply(id)
	answer.files = append(answer.files, a.alert)
	if err := s.keep(&answer, nil); err != nil {
		return reply{}, err
	}
	_ = e.Memory.Mapped(0) // the process has the files; it gets them only once
	a.owner.closeAlert(a.alert)
	a.alert = -1
	s.forget(a)
	s.ends[id] = e
	e.connection.recountBoth()
	return answer, nil
}

// noticeFile is memory in which the broker tells an end of its crossing. What the
// process writes there is not read. The broker writes by system calls: a mapping would cost
// more than the few that there are.
type noticeFile int

func newNotice(nonce *token) (noticeFile, error) {
	fd, err := engine.MemoryFile("notice", engine.PageSize)
	if err != nil {
		return -1, err
	}
	if _, err := unix.Pwrite(fd, nonce[:], int64(unsafe.Offsetof(wireNotice{}.Nonce))); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("write a notice: %w", err)
	}
	return noticeFile(fd), nil
}

// tell sets a bit, whose offset in the notice is at.
func (n noticeFile) tell(at uintptr) {
	_, _ = unix.Pwrite(int(n), []byte{1, 0, 0, 0}, int64(at)) // the page is there
}
