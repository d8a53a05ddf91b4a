package pipe

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// carried is one end's memory of the engine copier: a page of counters, a ring
// that it sends by and one that it receives by. It maps them, and so does the
// broker; its peer does not.
type carried struct {
	e    *end
	cid  uint16
	bell int // rings this end's doorbell

	// Guarded by the broker's lock: generations of rings.
	sends, recvs []*shared
	lending      [mostRegions]bool

	// The worker's, once it has the connection.
	page       *shared
	send, recv []*shared
	lent       [mostRegions]*shared
	number     int32 // with the worker
}

// carriage is a connection of the engine copier.
type carriage struct {
	worker *worker
	number uint32 // with the worker
	ends   [2]*carried
	ways   [2]*way // from the end of the same place
	gone   bool    // the worker shall forget it
}

// openCarried makes the memory of both ends, and each end's own doorbell.
func openCarried(w *worker, c *connection) error {
	g := &carriage{worker: w}
	for i, e := range c.ends {
		m := &carried{e: e, cid: uint16(e.party.Netns), bell: -1}
		e.memory, g.ends[i] = m, m
		if err := m.make(); err != nil {
			return err
		}
	}
	for i, m := range g.ends {
		to := g.ends[1-i]
		g.ways[i] = &way{
			carriage: g, number: uint16(i), from: m, to: to,
			send: ring{shared: m.send[0]}, recv: ring{shared: to.recv[0]},
		}
	}
	c.carriage = g
	w.adopt(g)
	return nil
}

func (m *carried) make() (err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make a doorbell: %w", err)
	}
	m.e.doorbell, m.bell = pair[0], pair[1]
	if err := unix.SetNonblock(m.bell, true); err != nil {
		return fmt.Errorf("make a doorbell that does not block: %w", err)
	}
	if m.page, err = newShared("page", pageSize); err != nil {
		return err
	}
	for _, rings := range []*[]*shared{&m.sends, &m.recvs} {
		r, err := newShared("ring", smallestRing)
		if err != nil {
			return err
		}
		*rings = append(*rings, r)
	}
	m.send, m.recv = append(m.send, m.sends...), append(m.recv, m.recvs...)
	return nil
}

func (m *carried) files() ([]int, uint64) {
	return []int{m.page.file, m.sends[0].file, m.recvs[0].file}, m.sends[0].size
}

func (m *carried) mapped(generation uint32) error {
	if int(generation) >= len(m.sends) || m.sends[generation].file < 0 {
		return unix.EINVAL
	}
	m.sends[generation].given()
	if generation == 0 {
		m.page.given()
		m.recvs[0].given()
		unix.Close(m.e.doorbell)
		m.e.doorbell = -1
	}
	return nil
}

func (m *carried) ring(generation uint32) ([]int, uint64, error) {
	if generation == 0 || int(generation) >= len(m.recvs) {
		return nil, 0, unix.EAGAIN
	}
	r := m.recvs[generation]
	if r.file < 0 {
		return nil, 0, unix.EALREADY
	}
	return []int{r.file}, r.size, nil
}

func (m *carried) given(generation uint32) { m.recvs[generation].given() }

// grow makes both rings of this end's way larger.
func (m *carried) grow(size uint64) (files []int, generation uint32, err error) {
	if m.sends[len(m.sends)-1].file >= 0 {
		return nil, 0, unix.EBUSY
	}
	send, err := newShared("ring", size)
	if err != nil {
		return nil, 0, err
	}
	recv, err := newShared("ring", size)
	if err != nil {
		send.unmap()
		send.given()
		return nil, 0, err
	}
	peer := m.e.peer().memory.(*carried)
	m.sends, peer.recvs = append(m.sends, send), append(peer.recvs, recv)
	m.e.connection.carriage.enlarge(m, send, peer, recv)
	return []int{send.file}, uint32(len(m.sends) - 1), nil
}

func (m *carried) size() uint64 { return m.sends[len(m.sends)-1].size }

func (m *carried) sent() uint64 {
	if m.page == nil || m.page.memory == nil {
		return 0
	}
	return load64(&m.page.page().Own.Head)
}

// close gives files back. Memory and bell are the worker's, if it has them.
func (m *carried) close() {
	for _, rings := range [][]*shared{m.sends, m.recvs} {
		for _, r := range rings {
			r.given()
		}
	}
	if m.page != nil {
		m.page.given()
	}
	for i, lends := range m.lending {
		if lends {
			m.lending[i] = false
			m.e.connection.b.regions--
		}
	}
	if m.e.connection.carriage == nil {
		m.release()
	}
}

// release unmaps everything. Nobody works with it any more.
func (m *carried) release() {
	if m.page != nil {
		m.page.unmap()
	}
	for _, memory := range [][]*shared{m.send, m.recv, m.lent[:]} {
		for _, r := range memory {
			if r != nil {
				r.unmap()
			}
		}
	}
	if m.bell >= 0 {
		unix.Close(m.bell)
		m.bell = -1
	}
}
