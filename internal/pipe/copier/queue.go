package copier

//go:generate go run ../genlayout copier queue_layout.go cuda/queue.h

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/engine"
)

// place is a location of bytes: the region's number in the upper 32 bits and the offset in
// the lower. Unlike a pointer it is valid in all address spaces.
type place uint64

func placeOf(region uint32, offset uint64) place { return place(uint64(region)<<32 | offset) }
func (p place) region() uint32                   { return uint32(p >> 32) }
func (p place) offset() uint64                   { return uint64(uint32(p)) }

// queues are the submission and the completion queue of a core (PipeDevice, Fig. 6), in
// memory that can be shared with a helper (cuda/queue.h). Each has one writer and one reader,
// so they need no locks.
type queues struct {
	memory []byte
	file   int // -1 if the memory is not shared
	*queueMemory
}

// newQueues creates the queues; in a memfd if name is not "".
func newQueues(name string) (q *queues, err error) {
	q = &queues{file: -1}
	size := int(unsafe.Sizeof(queueMemory{}))
	flags := unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	if name != "" {
		if q.file, err = engine.MemoryFile(name, uint64(size)); err != nil {
			return nil, err
		}
		flags = unix.MAP_SHARED
	}
	if q.memory, err = unix.Mmap(q.file, 0, size, unix.PROT_READ|unix.PROT_WRITE, flags); err != nil {
		q.close()
		return nil, fmt.Errorf("map queues: %w", err)
	}
	q.queueMemory = (*queueMemory)(unsafe.Pointer(&q.memory[0]))
	return q, nil
}

func (q *queues) close() {
	if q.memory != nil {
		_ = unix.Munmap(q.memory)
	}
	if q.file >= 0 {
		unix.Close(q.file)
	}
}

// submit adds an entry; false if there is no room for it or for its completion.
func (q *queues) submit(e entry) bool {
	n := q.Submitted.N.Load()
	if n-q.Returned.N.Load() == queueDepth {
		return false
	}
	q.Submissions[n%queueDepth] = e
	q.Submitted.N.Store(n + 1)
	return true
}

// take returns the next entry to execute. Only the stack calls it.
func (q *queues) take() (e entry, ok bool) {
	n := q.Taken.N.Load()
	if n == q.Submitted.N.Load() {
		return e, false
	}
	e = q.Submissions[n%queueDepth]
	q.Taken.N.Store(n + 1)
	return e, true
}

// complete reports an entry that was executed. Only the stack calls it.
func (q *queues) complete(e entry) {
	n := q.Completed.N.Load()
	q.Completions[n%queueDepth] = e
	q.Completed.N.Store(n + 1)
}

// next returns the next completion.
func (q *queues) next() (e entry, ok bool) {
	n := q.Returned.N.Load()
	if n == q.Completed.N.Load() {
		return e, false
	}
	e = q.Completions[n%queueDepth]
	q.Returned.N.Store(n + 1)
	return e, true
}
