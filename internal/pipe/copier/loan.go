package copier

import (
	"fmt"
	"math"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A sender of the engine copier can leave bytes where they lie: in memory of its
// own that it has given the broker to read, a region. A loan in its page says of
// some positions of the stream where. They count as the ring's all the same, and the
// sender can take a loan back by copying its bytes there: libsconpipe/src/loan.c.

const (
	// mostRegions that an end lends at a time; mostRegionsOfAll bounds how many
	// mappings that takes.
	mostRegions      = 8
	mostRegionsOfAll = 8192
	// mostLent bytes of a region.
	mostLent = 1 << 31
	// lentSeals: nobody takes its pages away while they are read.
	lentSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_FUTURE_WRITE
)

// span is a loan as it was read.
type span struct {
	start, end uint64 // positions
	offset     uint64 // in the region
}

// newLent maps memory of an application. Its pages have to be there, so that
// reading them takes none of the broker's.
func (c *Copier) newLent(file int) (*shared, error) {
	seals, err := unix.FcntlInt(uintptr(file), unix.F_GET_SEALS, 0)
	if err != nil || seals&lentSeals != lentSeals {
		return nil, fmt.Errorf("borrow memory that can be taken away: %w", unix.EPERM)
	}
	var st unix.Stat_t
	if err := unix.Fstat(file, &st); err != nil {
		return nil, fmt.Errorf("look at memory: %w", err)
	}
	if st.Size <= 0 || st.Size > mostLent || st.Blocks*512 < st.Size {
		return nil, fmt.Errorf("borrow %d bytes, of which %d are there: %w", st.Size, st.Blocks*512, unix.EINVAL)
	}
	m := &shared{size: uint64(st.Size), file: -1, kept: -1}
	if m.memory, err = unix.Mmap(file, 0, int(st.Size), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map memory of %d bytes: %w", st.Size, err)
	}
	if err := c.keep(m, file); err != nil {
		m.unmap()
		return nil, err
	}
	return m, nil
}

// Lend takes memory to copy from, and returns its number.
func (m *memory) Lend(file int) (number uint32, err error) {
	if file < 0 {
		return 0, unix.EBADF
	}
	i := 0
	for i < mostRegions && m.lending[i] {
		i++
	}
	c := m.carriage.copier
	if i == mostRegions || c.regions == mostRegionsOfAll {
		return 0, fmt.Errorf("%d regions are lent, %d by this end: %w", c.regions, i, unix.ENOBUFS)
	}
	r, err := c.newLent(file)
	if err != nil {
		return 0, err
	}
	m.lending[i] = true
	c.regions++
	g := m.carriage
	g.worker.do(func() {
		if g.gone {
			r.unmap()
			return
		}
		m.lent[i] = r
		if err := g.worker.know(r); err != nil {
			g.worker.fail(g, err)
		}
	})
	return uint32(i) + 1, nil
}

// TakeBack hears that memory is lent no more.
func (m *memory) TakeBack(number uint32) error {
	if number == 0 || number > mostRegions || !m.lending[number-1] {
		return unix.EINVAL
	}
	i := number - 1
	m.lending[i] = false
	m.carriage.copier.regions--
	g := m.carriage
	g.worker.do(func() {
		if r := m.lent[i]; r != nil {
			m.lent[i] = nil
			y := g.outgoing(m)
			y.leaving = append(y.leaving, r)
			y.letGo()
		}
	})
	return nil
}

// outgoing is the one that an end sends by.
func (g *carriage) outgoing(m *memory) *direction {
	if m == g.ends[1] {
		return g.directions[1]
	}
	return g.directions[0]
}

// letGo forgets regions that no copy uses any more.
func (y *direction) letGo() {
	if y.table.count > 0 {
		return
	}
	for _, r := range y.leaving {
		y.carriage.worker.leave(r)
	}
	y.leaving = nil
}

// source is where the next n bytes are, and how many of them in one piece.
func (y *direction) source(n uint64) (place, uint64, error) {
	p := y.from.page.page()
	if y.loan.end <= y.offered {
		if err := y.nextLoan(p); err != nil {
			return 0, 0, err
		}
	}
	l := &y.loan
	if l.end <= y.offered {
		return y.send.place(y.offered), y.send.piece(y.offered, n), nil
	}
	if y.offered < l.start {
		return y.send.place(y.offered), y.send.piece(y.offered, min(n, l.start-y.offered)), nil
	}
	n = min(n, l.end-y.offered)
	// In this order: the sender looks here after it has taken a loan back.
	p.Sent.Store(y.offered + n)
	switch number := p.Loans[(y.loans-1)%mostLoans].Region.Load(); {
	case number == 0:
		return y.send.place(y.offered), y.send.piece(y.offered, n), nil
	case number > mostRegions || y.from.lent[number-1] == nil:
		if y.carriage.worker.behind() { // it may have been lent just now
			return 0, 0, nil
		}
		return 0, 0, errProtocol
	default:
		r, at := y.from.lent[number-1], l.offset+(y.offered-l.start)
		if at > r.size || n > r.size-at {
			return 0, 0, errProtocol
		}
		return placeOf(r.region, at), n, nil
	}
}

// nextLoan reads the next one from the page, if there is one. A head that was read
// before has all loans of its bytes.
func (y *direction) nextLoan(p *page) error {
	lent := p.Lent.Load()
	if lent == y.loans {
		return nil
	}
	from := &p.Loans[y.loans%mostLoans]
	l := span{atomic.LoadUint64(&from.Start), atomic.LoadUint64(&from.End), atomic.LoadUint64(&from.Offset)}
	if lent-y.loans > mostLoans || l.start < y.offered || l.end <= l.start || l.offset > math.MaxUint32 {
		return errProtocol
	}
	y.loans++
	y.loan = l
	return nil
}
