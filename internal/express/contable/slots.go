package contable

// slotPage is how many slots have one page of a slotIndex.
const slotPage = 256

// slotIndex finds Conentries by their slots. Slots without a Conentry need no memory
// but for those around one, and a walk skips them: a table that is large and hardly
// used costs no more than a small one.
type slotIndex struct {
	slots uint32
	pages []*[slotPage]*Conentry
}

func newSlotIndex(slots int) slotIndex {
	return slotIndex{uint32(slots), make([]*[slotPage]*Conentry, (slots+slotPage-1)/slotPage)}
}

func (x *slotIndex) get(slot uint32) *Conentry {
	if page := x.pages[slot/slotPage]; page != nil {
		return page[slot%slotPage]
	}
	return nil
}

// set makes a slot a Conentry's, or nobody's by nil.
func (x *slotIndex) set(slot uint32, e *Conentry) {
	page := &x.pages[slot/slotPage]
	if *page == nil {
		if e == nil {
			return
		}
		*page = new([slotPage]*Conentry)
	}
	(*page)[slot%slotPage] = e
}

// walk calls fn for n slots from one on that have a Conentry or are beside one, or for
// less at the end. It returns the slot after them, 0 at the end.
func (x *slotIndex) walk(from, n uint32, fn func(slot uint32, e *Conentry)) (next uint32) {
	for slot := from; slot < x.slots; {
		page := x.pages[slot/slotPage]
		end := min((slot/slotPage+1)*slotPage, x.slots)
		if page == nil {
			slot = end
			continue
		}
		if n == 0 {
			return slot
		}
		end = min(end, slot+min(n, slotPage))
		n -= end - slot
		for ; slot < end; slot++ {
			if e := page[slot%slotPage]; e != nil {
				fn(slot, e)
			}
		}
	}
	return 0
}

// trim releases the memory of pages without Conentries. Between two calls walks from one
// slot on, by which no Conentry comes, visit the same slots.
func (x *slotIndex) trim() {
	for i, page := range x.pages {
		if page != nil && *page == ([slotPage]*Conentry{}) {
			x.pages[i] = nil
		}
	}
}
