package pipe

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/bpf"
	"github.com/scon-project/scon/internal/pipe/quota"
)

// fewestPooled is how many connections a process has before it gets a pool of rings, from which
// its further ones receive by turns: those of few keep rings of their own, which are in the cache
// as well, and take less memory than a pool.
const fewestPooled = 16

// joinPools chooses what the ends of a new connection receive from: their processes' pools, or
// rings of their own. Each end is charged with a ring nevertheless: there is one for it in the
// pool when its process does not read. The lock is held.
func (c *connection) joinPools() {
	if c.engine != BPF {
		return
	}
	for i, e := range c.ends {
		if e.ownRings {
			continue
		}
		if p := e.owner.rings(); p != nil {
			p.Join()
			e.owner.recountRings()
			c.pools[i] = p
		}
	}
}

// isPooled reports whether an end receives from a pool.
func (c *connection) isPooled() bool { return c.pools != [2]*bpf.Pool{} }

// leavePools ends that. The lock is held.
func (c *connection) leavePools() {
	for i, p := range c.pools {
		if p != nil {
			c.ends[i].owner.leavePool(p)
		}
	}
	c.pools = [2]*bpf.Pool{}
}

func (s *session) leavePool(p *bpf.Pool) {
	p.Leave()
	s.recountRings()
}

// keepUnread leaves the rings of pools to those ends of an attached connection that still have to
// read them: the processes do so when they like, and are charged until then. One that has closed
// its end may read on, and says that all is read once it does not. One that never got its end does
// not read. The lock is held.
func (c *connection) keepUnread() {
	for i, p := range c.pools {
		e := c.ends[i]
		m, made := e.Memory.(*bpf.Memory)
		if p == nil || !made || !c.attached || !m.IsMapped() || e.owner.over {
			continue
		}
		s, bytes := e.owner, c.first
		c.b.ledger.Force(s.owner, quota.Memory, bytes)
		m.Keep(func() {
			s.b.ledger.Give(s.owner, quota.Memory, bytes)
			s.leavePool(p)
		})
		c.pools[i] = nil
	}
}

// leaveRings returns the session's attached connections that receive from its pool to TCP, before
// other processes get them. After it returns, no byte is written to their rings.
func (s *session) leaveRings() error {
	b := s.b
	b.mu.Lock()
	k := b.program
	for c := range b.connections {
		for i, p := range c.pools {
			if c.attached && p != nil && c.ends[i].owner == s {
				c.detach()
				break
			}
		}
	}
	b.mu.Unlock()
	if k == nil {
		return nil
	}
	return k.Quiesce()
}

// rings returns the process's pool, and has it made once there are enough connections. The lock
// is held.
func (s *session) rings() *bpf.Pool {
	b := s.b
	if s.pool != nil || s.pooling != nil || s.over || len(s.ends)+len(s.attachments) < b.pooledFrom {
		return s.pool
	}
	if s.chargeRings() != nil {
		return nil
	}
	s.pooling = make(chan struct{})
	program := b.program
	b.running.Go(func() {
		p, err := program.NewPool()
		b.mu.Lock()
		defer b.mu.Unlock()
		close(s.pooling)
		if err == nil && s.over {
			p.Close()
			err = unix.ECONNABORTED
		}
		if err != nil {
			b.log.Debug("pipe: make a pool of rings", "pid", s.party.PID, "error", err)
			s.chargeRingsFor(0, 0)
			return
		}
		s.pool = p
	})
	return nil
}

// awaitRings waits while the process's pool is made: connections that began meanwhile would keep
// rings of their own, hundreds of them.
func (s *session) awaitRings() {
	s.b.mu.Lock()
	making := s.pooling
	s.b.mu.Unlock()
	if making != nil {
		<-making
	}
}

// makeRings has the process's pool made if it is to have one, and waits for that.
func (s *session) makeRings() {
	s.b.mu.Lock()
	s.rings()
	s.b.mu.Unlock()
	s.awaitRings()
}

// dropRings releases the process's pool, after its ends were left. The lock is held.
func (s *session) dropRings() {
	if s.pool != nil {
		s.pool.Close()
		s.pool = nil
		s.chargeRingsFor(0, 0)
	}
}

// chargeRings charges a pool with one chunk and the lists, whose files are open. The lock is held.
func (s *session) chargeRings() error {
	const bytes, files = bpf.ChunkBytes + bpf.ListBytes, 2
	if err := s.b.ledger.Take(s.owner, quota.Memory, bytes); err != nil {
		return err
	}
	if err := s.b.ledger.Take(s.owner, quota.Files, files); err != nil {
		s.b.ledger.Give(s.owner, quota.Memory, bytes)
		return err
	}
	s.poolBytes, s.poolFiles = bytes, files
	return nil
}

// recountRings corrects what is charged for the pool: chunks stay when ends leave. The lock is
// held.
func (s *session) recountRings() {
	if s.pool != nil {
		s.chargeRingsFor(s.pool.Uncovered())
	}
}

func (s *session) chargeRingsFor(bytes, files int64) {
	s.b.ledger.Force(s.owner, quota.Memory, bytes-s.poolBytes)
	s.b.ledger.Force(s.owner, quota.Files, files-s.poolFiles)
	s.poolBytes, s.poolFiles = bytes, files
}

// chunk returns the memory of a chunk of the process's pool, or its lists. If the process has
// attached connections, it makes the next chunk, whose rings are lent once the process has it: should
// the broker end, the process has all that was sent to it.
func (s *session) chunk(index uint32) (answer reply, err error) {
	s.b.mu.Lock()
	p, attaches := s.pool, s.attaches
	s.b.mu.Unlock()
	if p == nil {
		return answer, unix.EINVAL
	}
	extended := false
	if attaches {
		err = s.enlarge(func() (err error) {
			extended, err = p.Extend(index)
			return err
		})
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	var fd int
	if err == nil {
		fd, err = p.Chunk(index)
	}
	if err != nil {
		return answer, err
	}
	answer.files = []int{fd}
	if err := s.keep(&answer, nil); err != nil || !extended {
		return answer, err
	}
	closeFiles := answer.taken
	answer.taken = func() error {
		s.b.mu.Lock()
		defer s.b.mu.Unlock()
		return errors.Join(closeFiles(), p.Lend(index))
	}
	return answer, nil
}

// moreRings enlarges the pool that the peer of an end receives from.
func (s *session) moreRings(id uint32) error {
	p, owner, err := s.poolOfPeer(id)
	if err != nil {
		return err
	}
	return owner.enlarge(p.Grow)
}

// enlarge calls what may make a chunk of the process's pool, and corrects what is charged.
func (s *session) enlarge(grow func() error) error {
	ledger := s.b.ledger
	if err := ledger.Take(s.owner, quota.Files, 1); err != nil { // of the chunk, while it is made
		return err
	}
	err := grow()
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	ledger.Give(s.owner, quota.Files, 1)
	s.recountRings()
	if err != nil {
		return fmt.Errorf("enlarge a pool of rings: %w", err)
	}
	return nil
}

// poolOfPeer returns the pool that the peer of an end receives from, and its process.
func (s *session) poolOfPeer(id uint32) (*bpf.Pool, *session, error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	e := s.ends[id]
	if e == nil {
		return nil, nil, unix.EBADF
	}
	if e.connection.attached { // its process has to have the rings first: it asks for them
		return nil, nil, unix.EINVAL
	}
	for i, peer := range e.connection.ends {
		if p := e.connection.pools[i]; peer != e && p != nil {
			return p, peer.owner, nil
		}
	}
	return nil, nil, unix.EINVAL
}
