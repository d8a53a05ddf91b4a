// Package sealed is the engine "sealed": one ring per direction, which only its sender can
// write.
package sealed

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/engine"
)

// memory is the memory of one end: a page of counters and a ring, which this end writes and
// its peer reads. The peer gets them only after they are sealed, when no process can create a
// writable mapping any more, not even by /proc/self/fd.
type memory struct {
	e     *engine.End
	peer  *memory
	page  int // -1 once the peer has received it
	rings []ring
	view  []byte // the broker's mapping of the page, for statistics
}

// ring is one generation of a ring.
type ring struct {
	fd     int    // -1 once the peer has received it
	size   uint64 // bytes
	sealed bool
}

// lastSeals forbid further writable mappings. The sender's existing mapping stays writable.
const lastSeals = unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL

// Open creates the doorbells and the memory of both ends.
func Open(ends [2]*engine.End) error {
	pair, err := engine.Doorbells(unix.SOCK_STREAM)
	if err != nil {
		return err
	}
	ends[0].Doorbell, ends[1].Doorbell = pair[0], pair[1]
	own := [2]*memory{{e: ends[0], page: -1}, {e: ends[1], page: -1}}
	for i, m := range own {
		m.peer, m.e.Memory = own[1-i], m
	}
	for _, m := range own {
		if m.page, err = engine.MemoryFile("page", engine.PageSize); err != nil {
			return err
		}
		if m.view, err = unix.Mmap(m.page, 0, engine.PageSize, unix.PROT_READ, unix.MAP_SHARED); err != nil {
			return fmt.Errorf("map a page of counters: %w", err)
		}
		if err := m.add(engine.SmallestRing); err != nil {
			return err
		}
	}
	return nil
}

// add creates the next generation of the ring.
func (m *memory) add(size uint64) error {
	fd, err := engine.MemoryFile("ring", size)
	if err != nil {
		return err
	}
	m.rings = append(m.rings, ring{fd: fd, size: size})
	return nil
}

func (m *memory) Files() ([]int, uint64) {
	return []int{m.page, m.rings[0].fd}, m.rings[0].size
}

func (m *memory) Mapped(generation uint32) error {
	if int(generation) >= len(m.rings) || m.rings[generation].sealed {
		return unix.EINVAL
	}
	seal := []int{m.rings[generation].fd}
	if generation == 0 {
		seal = append(seal, m.page)
	}
	for _, fd := range seal {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, lastSeals); err != nil {
			return fmt.Errorf("seal memory: %w", err)
		}
	}
	m.rings[generation].sealed = true
	if generation == 0 {
		m.peer.Wake()
	}
	return nil
}

// Wake signals this end's doorbell by writing to the other end of the pair.
func (m *memory) Wake() { engine.Signal(m.peer.e.Doorbell) }

// Stop does nothing: the broker cannot revoke mappings. It shuts the doorbells down.
func (m *memory) Stop() {}

func (m *memory) Ring(generation uint32) (files []int, size uint64, err error) {
	peer := m.peer
	if int(generation) >= len(peer.rings) || !peer.rings[generation].sealed {
		return nil, 0, unix.EAGAIN
	}
	r := &peer.rings[generation]
	if r.fd < 0 {
		return nil, 0, unix.EALREADY
	}
	if generation == 0 {
		files = append(files, peer.page)
	}
	return append(files, r.fd), r.size, nil
}

func (m *memory) Given(generation uint32) {
	peer := m.peer
	unix.Close(peer.rings[generation].fd)
	peer.rings[generation].fd = -1
	if generation == 0 {
		unix.Close(peer.page)
		peer.page = -1
	}
}

func (m *memory) Grow(size uint64) (files []int, generation uint32, err error) {
	if !m.rings[len(m.rings)-1].sealed {
		return nil, 0, unix.EBUSY
	}
	if err := m.add(size); err != nil {
		return nil, 0, err
	}
	last := len(m.rings) - 1
	return []int{m.rings[last].fd}, uint32(last), nil
}

func (m *memory) Size() uint64 { return m.rings[len(m.rings)-1].size }

func (m *memory) Sent() uint64 {
	if m.view == nil {
		return 0
	}
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&m.view[0])))
}

func (m *memory) Held() (n int) {
	for _, r := range m.rings {
		if r.fd >= 0 {
			n++
		}
	}
	if m.page >= 0 {
		n++
	}
	return n
}

func (m *memory) Close() {
	for _, r := range m.rings {
		if r.fd >= 0 {
			unix.Close(r.fd)
		}
	}
	if m.page >= 0 {
		unix.Close(m.page)
	}
	if m.view != nil {
		_ = unix.Munmap(m.view)
	}
}
