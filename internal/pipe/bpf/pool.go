package bpf

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/engine"
)

// Of pools, as libsconpipe/src/page.h has them.
const (
	poolChunks = 256
	chunkRings = 64
	poolRing   = engine.SmallestRing // bytes

	// InPool is in the generation of an end's first ring if it is one of a pool.
	InPool = 1 << 31
)

// ChunkBytes is the size of a chunk of a pool in bytes.
const ChunkBytes = chunkRings * poolRing

// ListBytes is the size of a pool's lists in bytes, as libsconpipe/src/list.h has them.
const ListBytes = 16 * (2*128 + 4*4096)

// Processes that have pools, and chunks of these.
const (
	mostPools  = 1024
	mostChunks = 4096
)

// classPool is CLASS_POOL of pipe_copy.bpf.c.
const classPool = 4

// Pool is the rings that connections of one process receive from by turns: one holds a ring while
// bytes of it are unread. Only that process maps them. There are as many as connections, at most,
// rounded up to a chunk.
type Pool struct {
	k      *Program
	number uint32
	chunks []chunk
	lists  mapInSlot // of connections that have bytes
	making bool      // a chunk; guarded by the broker's lock
	ends   int       // that receive from it; guarded by the broker's lock
	closed bool      // guarded by the broker's lock
}

// chunk is some rings of a pool.
type chunk struct {
	number uint32
	memory *ebpf.Map // nil if it could not be made
}

// NewPool creates a pool with a chunk. It waits for running programs, 10 ms and more. ENOBUFS:
// there are too many. The broker's lock must not be held.
func (k *Program) NewPool() (*Pool, error) {
	p := &Pool{k: k}
	number, err := k.number(&k.pools)
	if err != nil {
		return nil, err
	}
	p.number = number
	if p.lists, err = k.newMemory(k.objs.Lists, number, ListBytes); err == nil {
		var c chunk
		if c, err = p.makeChunk(); err == nil {
			lock := k.lock
			lock.Lock()
			err = p.add(c)
			lock.Unlock()
		}
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// number takes a number from those that are free.
func (k *Program) number(free *[]uint32) (uint32, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	last := len(*free) - 1
	if last < 0 {
		return 0, fmt.Errorf("all pools of rings, or chunks of these, are in use: %w", unix.ENOBUFS)
	}
	n := (*free)[last]
	*free = (*free)[:last]
	return n, nil
}

// makeChunk creates a chunk that no pool has yet.
func (p *Pool) makeChunk() (c chunk, err error) {
	if c.number, err = p.k.number(&p.k.chunks); err != nil {
		return c, err
	}
	if c.memory, err = newArray(poolRing, chunkRings); err == nil {
		err = p.k.objs.Chunks.Put(c.number, uint32(c.memory.FD()))
	}
	if err != nil {
		p.k.dropChunk(c)
		return c, fmt.Errorf("store rings of a pool: %w", err)
	}
	return c, nil
}

// add adds a chunk, and lets the program lend its rings.
func (p *Pool) add(c chunk) error {
	p.chunks = append(p.chunks, c)
	return p.Lend(uint32(len(p.chunks) - 1))
}

// Lend lets the program lend the rings of a chunk. The lock is held.
func (p *Pool) Lend(index uint32) error {
	if p.closed {
		return unix.ECONNRESET
	}
	if err := p.k.objs.Pools.Put(p.number*poolChunks+index, p.chunks[index].number+1); err != nil {
		return fmt.Errorf("enlarge a pool of rings: %w", err)
	}
	return nil
}

// Join counts an end that receives from the pool, and Leave one that does no more. The lock is
// held.
func (p *Pool) Join()  { p.ends++ }
func (p *Pool) Leave() { p.ends-- }

// Uncovered returns the bytes of the pool that are not charged as its ends' rings, whose charges
// cover the chunks after the first one, and its files. The lock is held.
func (p *Pool) Uncovered() (bytes, files int64) {
	covered := min(p.ends, (len(p.chunks)-1)*chunkRings)
	return ListBytes + int64(len(p.chunks))*ChunkBytes - int64(covered)*poolRing, 1 + int64(len(p.chunks))
}

// Grow enlarges the pool, unless there is a ring for each end. It waits for running programs.
// EBUSY: another call does it. The broker's lock must not be held.
func (p *Pool) Grow() error { return p.grow(p.add) }

// Extend is Grow if the chunk of that index is the next one, and says so. Its rings are lent after
// Lend only.
func (p *Pool) Extend(index uint32) (extended bool, err error) {
	lock := p.k.lock
	lock.Lock()
	is := index == uint32(len(p.chunks))
	lock.Unlock()
	if !is {
		return false, nil
	}
	err = p.grow(func(c chunk) error {
		p.chunks = append(p.chunks, c)
		extended = true
		return nil
	})
	return extended, err
}

func (p *Pool) grow(add func(chunk) error) error {
	lock := p.k.lock
	lock.Lock()
	defer lock.Unlock()
	switch {
	case p.closed:
		return unix.ECONNRESET
	case p.making:
		return unix.EBUSY
	case len(p.chunks)*chunkRings >= p.ends || len(p.chunks) == poolChunks:
		return nil
	}
	p.making = true
	lock.Unlock()
	c, err := p.makeChunk()
	lock.Lock()
	p.making = false
	if err == nil && p.closed {
		p.k.dropChunk(c)
		err = unix.ECONNRESET
	}
	if err != nil {
		return err
	}
	return add(c)
}

// Chunk returns the memory of a chunk, or after the last possible one the lists, for the process to
// map; one that has had no room for it asks again. EINVAL: there is none with that index. The lock
// is held.
func (p *Pool) Chunk(index uint32) (fd int, err error) {
	if index == poolChunks {
		return p.lists.file(), nil
	}
	if index >= uint32(len(p.chunks)) {
		return -1, unix.EINVAL
	}
	return p.chunks[index].memory.FD(), nil
}

// Keep has Close leave this end the ring of the pool until all of it is read, or the pool is
// closed, and call kept then, with the lock held. The lock is held.
func (m *Memory) Keep(kept func()) { m.kept = kept }

// Pauses between looks whether a ring that is kept was read.
const (
	firstLook = time.Millisecond
	lastLook  = time.Second
)

// awaitRead waits until a ring that is kept was read.
func (m *Memory) awaitRead() {
	for pause := firstLook; !m.isRead() && !m.pool.isOver(); pause = min(2*pause, lastLook) {
		time.Sleep(pause)
	}
	m.k.lock.Lock()
	defer m.k.lock.Unlock()
	m.kept()
}

func (p *Pool) isOver() bool {
	p.k.lock.Lock()
	defer p.k.lock.Unlock()
	return p.closed || p.k.isOver()
}

// isRead reports whether the end has read all that its peer has sent, or cannot be asked.
func (m *Memory) isRead() bool {
	if err := m.k.Quiesce(); err != nil {
		return false
	}
	unread, err := m.k.objs.SconPipeUnread.Run(&ebpf.RunOptions{Context: pipecopyEnded{Slot: m.slot}})
	return err == nil && unread == 0
}

// Close releases the pool, when Stop was called for all ends that receive from it. The lock is
// held.
func (p *Pool) Close() {
	p.closed = true
	for i := range p.chunks {
		_ = p.k.objs.Pools.Put(p.number*poolChunks+uint32(i), uint32(0)) // of an array: cannot fail
	}
	for _, c := range p.chunks {
		p.k.dropChunk(c)
	}
	p.lists.close()
	p.k.freeAfter(func() bool { return deleted(p.k.objs.Lists, p.number) }, &p.k.pools, p.number)
}

// dropChunk releases a chunk. The deletion waits for the programs that may have looked it up.
func (k *Program) dropChunk(c chunk) {
	if c.memory != nil {
		c.memory.Close()
	}
	k.freeAfter(func() bool { return k.emptyChunk(c.number) }, &k.chunks, c.number)
}

// freeAfter gives back a number once what it stands for is empty.
func (k *Program) freeAfter(empty func() bool, to *[]uint32, number uint32) {
	k.behind.Go(func() {
		if k.repeat(empty) {
			k.free(to, number)
		}
	})
}

// deleted deletes an entry, and reports whether there is none.
func deleted(outer *ebpf.Map, number uint32) bool {
	err := outer.Delete(number)
	return err == nil || errors.Is(err, ebpf.ErrKeyNotExist)
}

func (k *Program) emptyChunk(number uint32) bool {
	if !deleted(k.objs.Chunks, number) {
		return false
	}
	for i := range uint32(chunkRings) {
		if k.objs.Holders.Put(number*chunkRings+i, uint64(0)) != nil {
			return false
		}
	}
	return true
}

// free gives back a number.
func (k *Program) free(to *[]uint32, number uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	*to = append(*to, number)
}

// numbers returns those below n.
func numbers(n uint32) []uint32 {
	all := make([]uint32, n)
	for i := range all {
		all[i] = n - 1 - uint32(i)
	}
	return all
}
