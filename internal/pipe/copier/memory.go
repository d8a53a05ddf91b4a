package copier

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/engine"
)

// memory is the memory of one end: a page of counters, a send ring and a receive ring. The
// end's process and the broker map them; the peer does not.
type memory struct {
	e        *engine.End
	peer     *memory
	carriage *carriage
	cid      uint16
	bell     int // the broker's end of this end's doorbell

	// Guarded by the broker's lock. sends and recvs: generations of rings.
	sends, recvs []*shared
	lending      [mostRegions]bool // numbers in use

	// Used by the worker's thread only, once it has adopted the connection.
	page       *shared
	send, recv []*shared
	lent       [mostRegions]*shared
	number     int32  // in the worker's epoll events
	share      *share // of its owner
}

// carriage is a connection of the engine.
type carriage struct {
	copier     *Copier
	worker     *worker
	adopted    bool   // the worker serves it
	number     uint32 // in the worker's entries
	ends       [2]*memory
	directions [2]*direction // directions[i] sends from ends[i]
	gone       bool          // closed; released once no copy is in progress
	paused     bool
	stills     []chan struct{} // of pauses that wait for copies in progress
	lost       func()          // reports to the broker that the worker has reset it
}

// open creates the memory and the doorbell of each end.
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
	pair, err := engine.Doorbells(unix.SOCK_STREAM)
	if err != nil {
		return err
	}
	m.e.Doorbell, m.bell = pair[0], pair[1]
	if err := unix.SetNonblock(m.bell, true); err != nil {
		return fmt.Errorf("set a doorbell nonblocking: %w", err)
	}
	if m.page, err = m.carriage.copier.newShared("page", engine.PageSize); err != nil {
		return err
	}
	for _, rings := range []*[]*shared{&m.sends, &m.recvs} {
		r, err := m.carriage.copier.newRing(engine.SmallestRing)
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
		unix.Close(m.e.Doorbell) // only the broker sends to it
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

// Grow creates larger rings for the direction in which this end sends; size in bytes. EBUSY:
// the process has not mapped the previous ring yet.
func (m *memory) Grow(size uint64) (files []int, generation uint32, err error) {
	if m.sends[len(m.sends)-1].file >= 0 {
		return nil, 0, unix.EBUSY
	}
	send, err := m.carriage.copier.newRing(size)
	if err != nil {
		return nil, 0, err
	}
	recv, err := m.carriage.copier.newRing(size)
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

func (m *memory) Held() int {
	n := 1 // the doorbell's other end
	for _, rings := range [][]*shared{m.sends, m.recvs, {m.page}} {
		for _, r := range rings {
			if r.file >= 0 {
				n++
			}
			if r.kept >= 0 {
				n++
			}
		}
	}
	return n
}

// Close closes the files. The worker releases mappings and doorbell if it has adopted the
// connection.
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

// Wake signals the end's doorbell.
func (m *memory) Wake() { engine.Signal(m.bell) }

// Stop does nothing: the broker calls Carriage.HangUp.
func (m *memory) Stop() {}

// release unmaps everything and closes the doorbell.
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
		m.e.CloseFD(m.bell)
		m.bell = -1
	}
}
