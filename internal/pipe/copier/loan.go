package copier

import (
	"fmt"
	"math"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A sender of the engine copier can send without a copy into its ring: from a buffer that it
// has registered with the broker (Lend), a region. A loan in its page maps a range of stream
// positions to an offset in a region. The positions still occupy the ring, so that the sender
// can end a loan by copying its bytes there: libsconpipe/src/loan.c.

const (
	// mostRegions bounds the buffers that an end registers, mostRegionsOfAll those of all
	// ends, and so the broker's mappings.
	mostRegions      = 8
	mostRegionsOfAll = 8192
	// mostLent bounds a region, in bytes.
	mostLent = 1 << 31
	// lentSeals prevent that a process removes pages that the broker reads.
	lentSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_FUTURE_WRITE
)

// span is a loan as read from the page.
type span struct {
	start, end uint64 // positions
	offset     uint64 // of start, in the region
}

// newLent maps a process's buffer for reading. All its pages have to be allocated, so that
// reading does not allocate pages that are charged to the broker.
func (c *Copier) newLent(file int) (*shared, error) {
	seals, err := unix.FcntlInt(uintptr(file), unix.F_GET_SEALS, 0)
	if err != nil || seals&lentSeals != lentSeals {
		return nil, fmt.Errorf("register a buffer without the seals F_SEAL_SHRINK and F_SEAL_FUTURE_WRITE: %w", unix.EPERM)
	}
	var st unix.Stat_t
	if err := unix.Fstat(file, &st); err != nil {
		return nil, fmt.Errorf("stat a buffer: %w", err)
	}
	if st.Size <= 0 || st.Size > mostLent || st.Blocks*512 < st.Size {
		return nil, fmt.Errorf("register a buffer of %d bytes, %d of them allocated: %w", st.Size, st.Blocks*512, unix.EINVAL)
	}
	m := &shared{size: uint64(st.Size), file: -1, kept: -1}
	if m.memory, err = unix.Mmap(file, 0, int(st.Size), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map a buffer of %d bytes: %w", st.Size, err)
	}
	if err := c.keep(m, file); err != nil {
		m.unmap()
		return nil, err
	}
	return m, nil
}

// Lend registers a buffer to copy from, a memfd with lentSeals, and returns its number, 1 to
// mostRegions. Errors: EBADF, EPERM without the seals, EINVAL for its size or missing pages,
// ENOBUFS at a limit.
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
		return 0, fmt.Errorf("%d buffers are registered, %d by this end: %w", c.regions, i, unix.ENOBUFS)
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
		if err := g.worker.addRegion(r); err != nil {
			g.worker.fail(g, err)
		}
	})
	return uint32(i) + 1, nil
}

// TakeBack unregisters a buffer. EINVAL: none has the number.
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
			y.returned = append(y.returned, r)
			y.dropReturned()
		}
	})
	return nil
}

// outgoing returns the direction in which an end sends.
func (g *carriage) outgoing(m *memory) *direction {
	if m == g.ends[1] {
		return g.directions[1]
	}
	return g.directions[0]
}

// dropReturned unmaps buffers that were taken back, once no copy is in progress.
func (y *direction) dropReturned() {
	if y.table.count > 0 {
		return
	}
	for _, r := range y.returned {
		y.carriage.worker.dropRegion(r)
	}
	y.returned = nil
}

// source returns where the next n bytes are, and how many of them are contiguous there.
func (y *direction) source(n uint64) (place, uint64, error) {
	p := y.from.page.page()
	if y.loan.end <= y.submitted {
		if err := y.nextLoan(p); err != nil {
			return 0, 0, err
		}
	}
	l := &y.loan
	if l.end <= y.submitted {
		return y.send.place(y.submitted), y.send.piece(y.submitted, n), nil
	}
	if y.submitted < l.start {
		return y.send.place(y.submitted), y.send.piece(y.submitted, min(n, l.start-y.submitted)), nil
	}
	n = min(n, l.end-y.submitted)
	// Before reading Region: a sender that ends a loan clears Region, then reads Sent.
	p.Sent.Store(y.submitted + n)
	switch number := p.Loans[(y.loans-1)%mostLoans].Region.Load(); {
	case number == 0:
		return y.send.place(y.submitted), y.send.piece(y.submitted, n), nil
	case number > mostRegions || y.from.lent[number-1] == nil:
		if y.carriage.worker.pending() { // Lend may be waiting there
			return 0, 0, nil
		}
		return 0, 0, errProtocol
	default:
		r, at := y.from.lent[number-1], l.offset+(y.submitted-l.start)
		if at > r.size || n > r.size-at {
			return 0, 0, errProtocol
		}
		return placeOf(r.region, at), n, nil
	}
}

// nextLoan reads the next loan from the page, if there is one. The sender publishes loans
// before the head that covers them.
func (y *direction) nextLoan(p *page) error {
	lent := p.Lent.Load()
	if lent == y.loans {
		return nil
	}
	from := &p.Loans[y.loans%mostLoans]
	l := span{atomic.LoadUint64(&from.Start), atomic.LoadUint64(&from.End), atomic.LoadUint64(&from.Offset)}
	if lent-y.loans > mostLoans || l.start < y.submitted || l.end <= l.start || l.offset > math.MaxUint32 {
		return errProtocol
	}
	y.loans++
	y.loan = l
	return nil
}
