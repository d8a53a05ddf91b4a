package pipe

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sealed is one end's memory of the engine of that name: a page of counters and
// a ring, both written by this end and read by its peer. The peer gets them
// only after they are sealed, when nobody can make a writable mapping any more,
// not even by /proc/self/fd.
type sealed struct {
	e     *end
	page  int // -1 when the peer has it
	rings []sealedRing
	view  []byte // of the page, for statistics
}

// sealedRing is one generation of a ring.
type sealedRing struct {
	fd     int // -1 when the peer has it
	size   uint64
	sealed bool
}

const (
	// firstSeals fix the size before anybody maps: a file that shrinks kills
	// whoever reads it.
	firstSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	// lastSeals take effect for whoever maps after the sender.
	lastSeals = unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL
)

// openSealed makes the memory of both ends.
func openSealed(c *connection) error {
	for _, e := range c.ends {
		m := &sealed{e: e, page: -1}
		e.memory = m
		var err error
		if m.page, err = sealedFile("page", pageSize); err != nil {
			return err
		}
		if m.view, err = unix.Mmap(m.page, 0, pageSize, unix.PROT_READ, unix.MAP_SHARED); err != nil {
			return fmt.Errorf("map a page of counters: %w", err)
		}
		if err := m.add(smallestRing); err != nil {
			return err
		}
	}
	return nil
}

// sealedFile is memory of a fixed size.
func sealedFile(what string, size uint64) (int, error) {
	fd, err := unix.MemfdCreate("scon-"+what, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("make a %s: %w", what, err)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("make a %s of %d bytes: %w", what, size, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, firstSeals); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("fix the size of a %s: %w", what, err)
	}
	return fd, nil
}

// add makes the next generation of the ring.
func (m *sealed) add(size uint64) error {
	fd, err := sealedFile("ring", size)
	if err != nil {
		return err
	}
	m.rings = append(m.rings, sealedRing{fd: fd, size: size})
	return nil
}

func (m *sealed) files() ([]int, uint64) {
	return []int{m.page, m.rings[0].fd}, m.rings[0].size
}

func (m *sealed) mapped(generation uint32) error {
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
		m.e.peer().wake()
	}
	return nil
}

// wake rings an end's doorbell: there is something to read from.
func (e *end) wake() {
	switch m := e.memory.(type) {
	case *carried:
		m.rouse()
	case *plain: // nothing but the peer's bytes may come
	default:
		ringBell(e.peer().doorbell)
	}
}

// ringBell writes a byte to a doorbell, and says whether it had room. Whoever has the
// other end may have let it fill up: then it has rung. An application can make its file
// block; this does not.
func ringBell(fd int) bool {
	return unix.Sendto(fd, []byte{0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil) == nil
}

func (m *sealed) ring(generation uint32) (files []int, size uint64, err error) {
	peer := m.e.peer().memory.(*sealed)
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

func (m *sealed) given(generation uint32) {
	peer := m.e.peer().memory.(*sealed)
	unix.Close(peer.rings[generation].fd)
	peer.rings[generation].fd = -1
	if generation == 0 {
		unix.Close(peer.page)
		peer.page = -1
	}
}

func (m *sealed) grow(size uint64) (files []int, generation uint32, err error) {
	if !m.rings[len(m.rings)-1].sealed {
		return nil, 0, unix.EBUSY
	}
	if err := m.add(size); err != nil {
		return nil, 0, err
	}
	last := len(m.rings) - 1
	return []int{m.rings[last].fd}, uint32(last), nil
}

func (m *sealed) size() uint64 { return m.rings[len(m.rings)-1].size }

func (m *sealed) sent() uint64 {
	if m.view == nil {
		return 0
	}
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&m.view[0])))
}

func (m *sealed) close() {
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
