package contable

import (
	"slices"
	"unsafe"

	"github.com/scon-project/scon/internal/express/datapath"
)

// The table has few pages at first, and gets another one before the slots of those that it
// has are used up. Slots are taken from the first pages, so that the last ones become
// empty and can be given back.

// free is which slots are not used.
type free struct {
	pages [][]uint16 // free slots of each page; nil for one that there is not
	each  int        // slots of a page that are used
	n     int
	total int // slots, free or not
	first int // no page before it has any
}

func newFree(pages, each int) free { return free{pages: make([][]uint16, pages), each: each} }

// add makes a page's slots free that isFree approves.
func (f *free) add(page int, isFree func(slot uint32) bool) {
	slots := make([]uint16, 0, f.each)
	for i := f.each - 1; i >= 0; i-- {
		if isFree(uint32(page*datapath.PageSlots + i)) {
			slots = append(slots, uint16(i))
		}
	}
	f.pages[page], f.n, f.total, f.first = slots, f.n+len(slots), f.total+f.each, min(f.first, page)
}

// remove takes the slots of a page that are free.
func (f *free) remove(page int) {
	f.n, f.total = f.n-len(f.pages[page]), f.total-f.each
	f.pages[page] = nil
}

func (f *free) take() (slot uint32, ok bool) {
	for ; f.first < len(f.pages); f.first++ {
		if slots := f.pages[f.first]; len(slots) > 0 {
			last := len(slots) - 1
			f.pages[f.first] = slots[:last]
			f.n--
			return uint32(f.first*datapath.PageSlots) + uint32(slots[last]), true
		}
	}
	f.first = 0
	return 0, false
}

func (f *free) give(slot uint32) {
	page := int(slot / datapath.PageSlots)
	f.pages[page] = append(f.pages[page], uint16(slot%datapath.PageSlots))
	f.n++
	f.first = min(f.first, page)
}

// last returns the last page.
func (f *free) last() int {
	for page := len(f.pages) - 1; page > 0; page-- {
		if f.pages[page] != nil {
			return page
		}
	}
	return 0
}

// spare is how many slots should be free before the next connections come: a
// sixteenth of those in use, half a page at least.
func (t *Table) spare() int {
	return max(t.opts.PageSlots/2, (t.free.total-t.free.n)/16)
}

// Wants returns a page that the table should have. AddPage is the answer.
func (t *Table) Wants() (page int, wants bool) {
	if t.free.n >= t.spare() {
		return 0, false
	}
	page = slices.IndexFunc(t.free.pages, func(p []uint16) bool { return p == nil })
	return page, page >= 0
}

// AddPage adds a page, whose slots are empty.
func (t *Table) AddPage(page int, halves []datapath.Half) {
	t.halves[page] = halves
	t.free.add(page, func(uint32) bool { return true })
}

// WantsOuters returns a page that should have room for outer headers: a tunnel's device
// may be bypassed. AddOuters is the answer.
func (t *Table) WantsOuters() (page int, wants bool) {
	if t.settings.Tunnels == 0 {
		return 0, false
	}
	for page := range t.halves {
		if t.halves[page] != nil && t.outers[page] == nil {
			return page, true
		}
	}
	return 0, false
}

// AddOuters adds room for the outer headers of a page's slots.
func (t *Table) AddOuters(page int, outers []datapath.Outer) { t.outers[page] = outers }

// TakeSurplus takes the last page out of the table if none of its slots is in use and the
// table has more than enough without it. The page may be removed then.
func (t *Table) TakeSurplus() (page int, taken bool) {
	page = t.free.last()
	if page == 0 || len(t.free.pages[page]) < t.free.each || t.free.n < t.free.each+2*t.spare() {
		return 0, false
	}
	t.free.remove(page)
	t.halves[page], t.outers[page] = nil, nil
	return page, true
}

// Size returns how many bytes the table takes, and for how many connections it has
// slots now.
func (t *Table) Size() (bytes uint64, connections int) {
	bytes = uint64(len(t.buckets))*uint64(unsafe.Sizeof(datapath.Bucket{})) + uint64(len(t.counts))*uint64(unsafe.Sizeof(t.counts[0]))
	for page := range t.halves {
		if t.halves[page] != nil {
			bytes += datapath.PageSlots * uint64(unsafe.Sizeof(datapath.Half{}))
		}
		if t.outers[page] != nil {
			bytes += datapath.PageSlots * uint64(unsafe.Sizeof(datapath.Outer{}))
		}
	}
	return bytes, min(t.free.total/2, t.opts.Connections)
}

// half returns what is in a slot.
func (t *Table) half(slot uint32) *datapath.Half {
	return &t.halves[slot/datapath.PageSlots][slot%datapath.PageSlots]
}

// has reports whether there is a slot.
func (t *Table) has(slot uint32) bool {
	page := slot / datapath.PageSlots
	return int(page) < len(t.halves) && t.halves[page] != nil
}

// eachSlot calls fn for every slot.
func (t *Table) eachSlot(fn func(slot uint32, h *datapath.Half)) {
	for page, halves := range t.halves {
		for i := range halves {
			fn(uint32(page*datapath.PageSlots+i), &halves[i])
		}
	}
}

// keyOf returns the key in a slot.
func (t *Table) keyOf(slot uint32) datapath.Key {
	k := &t.half(slot).Key
	return datapath.Key{Addrs: k.Addrs, Ports: k.Ports, Side: k.Side}
}
