package pipe

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// entry is what the broker asks a stack for, and the stack's answer: the
// paper's Fig. 6. A stack looks at Kind, Len, Src and Dst; the rest is the
// broker's own.
type entry struct {
	Kind  uint8
	_     uint8
	CID   uint16 // of the container that sends
	Len   uint32 // bytes
	Src   place
	Dst   place
	Conn  uint32
	Table uint16 // of the connection: the client's, the server's send buffer table
	Seq   uint16 // of the entry there
}

// What an entry's Kind can be.
const (
	kindGeneralSend uint8 = iota + 1 // copy
	kindCompleted                    // it is done
	kindFailed                       // it could not be done
)

// place is where bytes lie: the region's number in the upper half, which holds
// in all address spaces, and the offset there.
type place uint64

func placeOf(region uint32, offset uint64) place { return place(uint64(region)<<32 | offset) }
func (p place) region() uint32                   { return uint32(p >> 32) }
func (p place) offset() uint64                   { return uint64(uint32(p)) }

// queueDepth is the paper's (section IV).
const queueDepth = 1024

// queues are a core's submission and completion queue, in memory that can be
// shared: internal/pipe/copier/cuda has the same. Each has one writer and one reader, so
// there are no locks.
type queues struct {
	memory []byte
	file   int // -1 if it is not shared
	*queueMemory
}

type queueMemory struct {
	submitted, taken    position // of the submission queue
	completed, returned position // of the completion queue
	sleeps              position // 1: who takes submissions wants to be woken
	submissions         [queueDepth]entry
	completions         [queueDepth]entry
}

// position counts entries, in a cache line of its own.
type position struct {
	n atomic.Uint32
	_ [124]byte
}

// newQueues makes them; a file of them is there if name is given.
func newQueues(name string) (q *queues, err error) {
	q = &queues{file: -1}
	size := int(unsafe.Sizeof(queueMemory{}))
	flags := unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	if name != "" {
		if q.file, err = sealedFile(name, uint64(size)); err != nil {
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

// submit adds an entry, if there is room for it and for its completion.
func (q *queues) submit(e entry) bool {
	n := q.submitted.n.Load()
	if n-q.returned.n.Load() == queueDepth {
		return false
	}
	q.submissions[n%queueDepth] = e
	q.submitted.n.Store(n + 1)
	return true
}

// take is the stack's: the next entry to carry out.
func (q *queues) take() (e entry, ok bool) {
	n := q.taken.n.Load()
	if n == q.submitted.n.Load() {
		return e, false
	}
	e = q.submissions[n%queueDepth]
	q.taken.n.Store(n + 1)
	return e, true
}

// complete is the stack's: an entry was carried out.
func (q *queues) complete(e entry) {
	n := q.completed.n.Load()
	q.completions[n%queueDepth] = e
	q.completed.n.Store(n + 1)
}

// next is a completion.
func (q *queues) next() (e entry, ok bool) {
	n := q.returned.n.Load()
	if n == q.completed.n.Load() {
		return e, false
	}
	e = q.completions[n%queueDepth]
	q.returned.n.Store(n + 1)
	return e, true
}
