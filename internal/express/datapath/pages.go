package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"path/filepath"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The table is an array of maps, its pages, of which each is pinned. A page that is
// pinned and not in the array, because a daemon has died in between, is put into it by
// the next one.

// PageSlots is how many slots a page of the table has: PAGE_SLOTS of bpf/lib/maps.h.
const PageSlots = 1 << 12

// Names of the pins of pages, without their numbers.
const (
	pinHalves = "page"
	pinOuters = "outers"
)

// size is how large the table can become.
type size struct {
	pages      uint32
	buckets    uint32
	candidates uint32
}

// sizeFor returns the size of a table for that many connections: three slots for each,
// as one of two containers takes, and some for those that have just ended.
func sizeFor(connections uint32) size {
	square := uint32(1) << bits.Len32(connections-1)
	return size{
		pages:      (4*connections + PageSlots - 1) / PageSlots,
		buckets:    max(square, 16),
		candidates: max(square, 1<<16),
	}
}

// roomForDaemon is more than the daemon itself takes for a page of Conentries, 0.2 KB each and
// what its heap grows by until a collection: the kernel would rather end it than refuse.
const roomForDaemon = 8 << 20

// page is one inner map of an array of maps, as this process sees it.
type page[T any] struct {
	array *ebpf.Map
	spec  *ebpf.MapSpec
	pin   string
}

func (d *Datapath) halves() page[Half] {
	return page[Half]{d.objs.Conentries, d.inner[expressMapConentries], pinHalves}
}

func (d *Datapath) outers() page[Outer] {
	return page[Outer]{d.objs.Outers, d.inner[expressMapOuters], pinOuters}
}

// AddPage makes a page of the table that there is none of, and returns its slots. It
// waits until every program sees the page: some ten milliseconds. One goroutine at a time
// may call AddPage, AddOuters and DropPage.
func (d *Datapath) AddPage(number int) ([]Half, error) { return add(d, d.halves(), number) }

// AddOuters does the same for the outer headers of a page's slots.
func (d *Datapath) AddOuters(number int) ([]Outer, error) { return add(d, d.outers(), number) }

// DropPage removes a page none of whose slots is in use, and its outer headers.
func (d *Datapath) DropPage(number int) error {
	return errors.Join(drop(d, d.outers(), number), drop(d, d.halves(), number))
}

func pagePin(pinDir, pin string, number int) string {
	return filepath.Join(pinDir, fmt.Sprintf("%s%d", pin, number))
}

func add[T any](d *Datapath, p page[T], number int) (_ []T, err error) {
	if err := checkRoom(uint64(p.spec.ValueSize)*PageSlots + roomForDaemon); err != nil {
		return nil, fmt.Errorf("adding %s %d of the table: %w", p.pin, number, err)
	}
	m, err := ebpf.NewMap(p.spec)
	if err != nil {
		return nil, fmt.Errorf("adding %s %d of the table: %w", p.pin, number, err)
	}
	defer m.Close()
	path := pagePin(d.opts.PinDir, p.pin, number)
	if err := m.Pin(path); err != nil {
		return nil, fmt.Errorf("pinning %s %d of the table: %w", p.pin, number, err)
	}
	slots, err := insert(d, p, number, m)
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	return slots, nil
}

// insert makes a pinned page visible to this process, and to the programs.
func insert[T any](d *Datapath, p page[T], number int, m *ebpf.Map) ([]T, error) {
	at, err := d.mmap(m, fmt.Sprintf("%s%d", p.pin, number))
	if err != nil {
		return nil, err
	}
	var id uint32
	if p.array.Lookup(uint32(number), &id) != nil {
		if err := p.array.Put(uint32(number), m); err != nil {
			return nil, errors.Join(fmt.Errorf("adding %s %d to the table: %w", p.pin, number, err), d.munmap(fmt.Sprintf("%s%d", p.pin, number)))
		}
	}
	return unsafe.Slice((*T)(at), PageSlots), nil
}

// drop removes a page that may not be there.
func drop[T any](d *Datapath, p page[T], number int) error {
	if err := p.array.Delete(uint32(number)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("removing %s %d from the table: %w", p.pin, number, err)
	}
	if err := os.Remove(pagePin(d.opts.PinDir, p.pin, number)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the pin of %s %d: %w", p.pin, number, err)
	}
	return d.munmap(fmt.Sprintf("%s%d", p.pin, number))
}

// adoptPages returns the pages that an earlier daemon has pinned.
func adoptPages[T any](d *Datapath, p page[T]) ([][]T, error) {
	pages := make([][]T, d.size.pages)
	for number := range pages {
		m, err := ebpf.LoadPinnedMap(pagePin(d.opts.PinDir, p.pin, number), nil)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("opening %s %d of the table: %w", p.pin, number, err)
		}
		if err = p.spec.Compatible(m); err == nil {
			pages[number], err = insert(d, p, number, m)
		}
		m.Close()
		if err != nil {
			return nil, fmt.Errorf("taking over %s %d of the table: %w", p.pin, number, err)
		}
	}
	return pages, nil
}

// mmap makes a map visible to this process, until munmap or Close.
func (d *Datapath) mmap(m *ebpf.Map, name string) (unsafe.Pointer, error) {
	size := int(m.MaxEntries()) * int(m.ValueSize())
	b, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping %s: %w", m, err)
	}
	d.mapped[name] = b
	return unsafe.Pointer(&b[0]), nil
}

// munmap takes back what mmap has done, if it has.
func (d *Datapath) munmap(name string) error {
	b, mapped := d.mapped[name]
	if !mapped {
		return nil
	}
	delete(d.mapped, name)
	if err := unix.Munmap(b); err != nil {
		return fmt.Errorf("unmapping %s: %w", name, err)
	}
	return nil
}
