package copier

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/engine"
)

// memory is one end's: a page of counters, a ring that it sends by and one that it receives
// by. It maps them, and so does the broker; its peer does not.
type memory struct {
	e        *engine.End
	peer     *memory
	carriage *carriage
	cid      uint16
	bell     int // signals this end's doorbell

	// Guarded by the broker's lock: generations of rings.
	sends, recvs []*shared
	lending      [mostRegions]bool

	// The worker's, once it has the connection.
	page       *shared
	send, recv []*shared
	lent       [mostRegions]*shared
	number     int32 // with the worker
}

// carriage is a connection of the engine.
type carriage struct {
	copier     *Copier
	worker     *worker
	adopted    bool   // the worker has it
	number     uint32 // with the worker
	ends       [2]*memory
	directions [2]*direction // from the end of the same place
	gone       bool          // the worker shall forget it
	lost       func()        // tells the broker that the worker has ended it
}

// open makes the memory of both ends, and each end's own doorbell.
func (c *Copier) open(w *worker, ends [2]*engine.End, lost func()) (*carriage, error) {
	g := &carriage{copier: c, worker: w, lost: lost}
	for i, e := range ends {
		m := &memory{e: e, carriage: g, cid: uint16(e.Netns), bell: -1}
		e.Memory, g.ends[i] = m, m
		if err := m.make(); err != nil {
			return nil, err
		}
	}
	for i, m := range g.ends {
		m.peer = g.ends[1-i]
		g.directions[i] = &direction{
			carriage: g, number: uint16(i), from: m, to: m.peer,
			send: ring{shared: m.send[0]}, recv: ring{shared: m.peer.recv[0]},
		}
	}
	g.adopted = true
	w.adopt(g)
	return g, nil
}

func (m *memory) make() (err error) {
	pair, err := engine.Doorbells()
	if err != nil {
		return err
	}
	m.e.Doorbell, m.bell = pair[0], pair[1]
	if err := unix.SetNonblock(m.bell, true); err != nil {
		return fmt.Errorf("make a doorbell that does not block: %w", err)
	}
	if m.page, err = m.carriage.copier.newShared("page", engine.PageSize); err != nil {
		return err
	}
	for _, rings := range []*[]*shared{&m.sends, &m.recvs} {
		r, err := m.carriage.copier.newShared("ring", engine.SmallestRing)
		if err != nil {
			return err
		}
		*rings = append(*rings, r)
	}
	m.send, m.recv = append(m.send, m.sends...), append(m.recv, m.recvs...)
	return nil
}

func (m *memory) Files() ([]int, uint64) {
	return []int{m.page.file, m.sends[0].file, m.recvs[0].file}, m.sends[0].size
}

func (m *memory) Mapped(generation uint32) error {
	if int(generation) >= len(m.sends) || m.sends[generation].file < 0 {
		return unix.EINVAL
	}
	m.sends[generation].given()
	if generation == 0 {
		m.page.given()
		m.recvs[0].given()
		unix.Close(m.e.Doorbell)
		m.e.Doorbell = -1
	}
	return nil
}

func (m *memory) Ring(generation uint32) ([]int, uint64, error) {
	if generation == 0 || int(generation) >= len(m.recvs) {
		return nil, 0, unix.EAGAIN
	}
	r := m.recvs[generation]
	if r.file < 0 {
		return nil, 0, unix.EALREADY
	}
	return []int{r.file}, r.size, nil
}

func (m *memory) Given(generation uint32) { m.recvs[generation].given() }

// Grow makes both rings of this end's direction larger.
func (m *memory) Grow(size uint64) (files []int, generation uint32, err error) {
	if m.sends[len(m.sends)-1].file >= 0 {
		return nil, 0, unix.EBUSY
	}
	send, err := m.carriage.copier.newShared("ring", size)
	if err != nil {
		return nil, 0, err
	}
	recv, err := m.carriage.copier.newShared("ring", size)
	if err != nil {
		send.unmap()
		send.given()
		return nil, 0, err
	}
	peer := m.peer
	m.sends, peer.recvs = append(m.sends, send), append(peer.recvs, recv)
	m.carriage.enlarge(m, send, peer, recv)
	return []int{send.file}, uint32(len(m.sends) - 1), nil
}

func (m *memory) Size() uint64 { return m.sends[len(m.sends)-1].size }

func (m *memory) Sent() uint64 {
	if m.page == nil || m.page.memory == nil {
		return 0
	}
	return m.page.page().Own.Head.Load()
}

// Close gives files back. Memory and bell are the worker's, if it has them.
func (m *memory) Close() {
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
			m.carriage.copier.regions--
		}
	}
	if !m.carriage.adopted {
		m.release()
	}
}

// Wake signals the doorbell.
func (m *memory) Wake() { engine.Signal(m.bell) }

// Stop is the carriage's.
func (m *memory) Stop() {}

// release unmaps everything. Nobody works with it any more.
func (m *memory) release() {
	if m.page != nil {
		m.page.unmap()
	}
	for _, all := range [][]*shared{m.send, m.recv, m.lent[:]} {
		for _, r := range all {
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
