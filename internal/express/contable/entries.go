package contable

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/datapath"
)

// entries are the places of all Conentries. A place is taken from the first pages that have
// one, so that the others become empty and their memory goes back to the kernel.
type entries struct {
	all     []Conentry
	free    free
	serials uint32 // of the latest one that was placed
}

// entryPage is how many Conentries have their places taken, and given back, together.
const entryPage = datapath.PageSlots

func newEntries(most int) (entries, error) {
	pages := (most + entryPage - 1) / entryPage
	all, err := offHeap[Conentry](pages * entryPage)
	return entries{all: all, free: newFree(pages, entryPage)}, err
}

// take returns a place with nothing in it but its ref; nil if there is none.
func (x *entries) take() *Conentry {
	index, ok := x.free.take()
	if !ok {
		for page, there := range x.free.pages {
			if there == nil {
				x.free.add(page, func(uint32) bool { return true })
				return x.take()
			}
		}
		return nil
	}
	if x.serials++; x.serials == 0 {
		x.serials++
	}
	e := &x.all[index]
	*e = Conentry{ref: Ref{index, x.serials}}
	return e
}

func (x *entries) give(e *Conentry) {
	index := e.ref.index
	*e = Conentry{}
	x.free.give(index)
}

// isPlaced reports whether there is a Conentry in a place.
func (e *Conentry) isPlaced() bool { return e.ref.serial != 0 && !e.gone }

// walk calls fn for the Conentries in n places from one on, or in less at the end; pages
// without a Conentry do not count. It returns the place after them, 0 at the end.
func (x *entries) walk(from, n uint32, fn func(*Conentry)) (next uint32) {
	for at := from; int(at) < len(x.all); {
		page := at / entryPage
		end := (page + 1) * entryPage
		if there := x.free.pages[page]; there == nil || len(there) == entryPage {
			at = end
			continue
		}
		if n == 0 {
			return at
		}
		end = min(end, at+min(n, entryPage))
		n -= end - at
		for ; at < end; at++ {
			if e := &x.all[at]; e.isPlaced() {
				fn(e)
			}
		}
	}
	return 0
}

// trim gives the memory of the last page back if it is not used.
func (x *entries) trim() {
	page := x.free.last()
	if page == 0 || len(x.free.pages[page]) < entryPage || x.free.n < entryPage+entryPage/2 {
		return
	}
	x.free.remove(page)
	discardPages(x.all[page*entryPage : (page+1)*entryPage])
}

func (x *entries) clear() {
	discardPages(x.all)
	x.free = newFree(len(x.free.pages), entryPage)
}

// Live returns the Conentry that a Ref names, nil if it is gone.
func (t *Table) Live(r Ref) *Conentry {
	if e := &t.entries.all[r.index]; e.ref == r && e.isPlaced() {
		return e
	}
	return nil
}

// Places returns the number of places for Conentries.
func (t *Table) Places() int { return len(t.entries.all) }

// offHeap returns n zero values without pointers in memory of the process that becomes
// resident only where it is used. The garbage collector neither looks at it nor lets the heap
// grow in proportion to it. It stays for as long as the process lives. There may be no address
// space for it, or with vm.overcommit_memory=2 no memory.
func offHeap[T any](n int) ([]T, error) {
	if n == 0 {
		return nil, nil
	}
	size := n * int(unsafe.Sizeof(*new(T)))
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("mapping %d KB: %w", size>>10, err)
	}
	// Where transparent_hugepage is "always", the first use would take 2 MB.
	_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE) // EINVAL: the kernel has none
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), n), nil
}

// discardPages makes memory of offHeap zero, and gives it back to the kernel.
func discardPages[T any](all []T) {
	if len(all) == 0 {
		return
	}
	size := len(all) * int(unsafe.Sizeof(*new(T)))
	b := unsafe.Slice((*byte)(unsafe.Pointer(&all[0])), size)
	if unix.Madvise(b, unix.MADV_DONTNEED) != nil { // it is not locked memory then
		clear(all)
	}
}
