package pipe

import (
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
	if c.engine != BPF || c.attached {
		return
	}
	for i, e := range c.ends {
		if p := e.owner.rings(); p != nil {
			p.Join()
			c.pools[i] = p
		}
	}
}

// leavePools ends that. The lock is held.
func (c *connection) leavePools() {
	for _, p := range c.pools {
		if p != nil {
			p.Leave()
		}
	}
	c.pools = [2]*bpf.Pool{}
}

// rings returns the process's pool, and has it made once there are enough connections. The lock
// is held.
func (s *session) rings() *bpf.Pool {
	b := s.b
	if s.pool != nil || s.pooling || s.over || len(s.ends) < fewestPooled {
		return s.pool
	}
	if b.ledger.Take(s.owner, quota.Memory, bpf.ChunkBytes) != nil {
		return nil
	}
	s.pooling = true
	program := b.program
	b.running.Go(func() {
		p, err := program.NewPool()
		b.mu.Lock()
		defer b.mu.Unlock()
		s.pooling = false
		if err == nil && s.over {
			p.Close()
			err = unix.ECONNABORTED
		}
		if err != nil {
			b.log.Debug("pipe: make a pool of rings", "pid", s.party.PID, "error", err)
			b.ledger.Give(s.owner, quota.Memory, bpf.ChunkBytes)
			return
		}
		s.pool = p
	})
	return nil
}

// dropRings releases the process's pool, after its ends were left. The lock is held.
func (s *session) dropRings() {
	if s.pool != nil {
		s.pool.Close()
		s.b.ledger.Give(s.owner, quota.Memory, bpf.ChunkBytes)
		s.pool = nil
	}
}

// chunk returns the memory of a chunk of the process's pool.
func (s *session) chunk(index uint32) (answer reply, err error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.pool == nil {
		return answer, unix.EINVAL
	}
	fd, err := s.pool.Chunk(index)
	if err != nil {
		return answer, err
	}
	answer.files = []int{fd}
	if err := s.keep(&answer, nil); err != nil {
		return reply{}, err
	}
	s.pool.Given(index)
	return answer, nil
}

// moreRings enlarges the pool that the peer of an end receives from.
func (s *session) moreRings(id uint32) error {
	p, err := s.poolOfPeer(id)
	if err != nil {
		return err
	}
	if err := p.Grow(); err != nil {
		return fmt.Errorf("enlarge a pool of rings: %w", err)
	}
	return nil
}

func (s *session) poolOfPeer(id uint32) (*bpf.Pool, error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	e := s.ends[id]
	if e == nil {
		return nil, unix.EBADF
	}
	c := e.connection
	for i, peer := range c.ends {
		if peer != e && c.pools[i] != nil {
			return c.pools[i], nil
		}
	}
	return nil, unix.EINVAL
}
