// Package bpf is the engine of that name: a program in the kernel copies from the sender's
// memory into a ring that only the receiver maps.
package bpf

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/bpfload"
	"github.com/scon-project/scon/internal/pipe/engine"
)

//go:generate go tool bpf2go -no-global-types -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu" -type place pipecopy pipe_copy.bpf.c

// Program is the kernel side of the engine bpf. It is loaded with the first
// connection that wants it.
//
// An end's slot selects its page and its rings in the program's maps. A slot is
// used again only when no program can still be at work for the end that had it.
type Program struct {
	log    *slog.Logger
	lock   sync.Locker // the broker's
	objs   pipecopyObjects
	link   link.Link
	blank  *ebpf.Map      // for Quiesce
	leave  func() error   // the cgroup
	behind sync.WaitGroup // who makes spares and frees slots

	mu     sync.Mutex
	slots  []uint32  // free ones
	spares []*Memory // memory for ends to come
	making int       // of them, under way
	over   bool
}

const (
	// mostSlots bounds the ends of connections of the engine bpf.
	mostSlots = 16384
	// mostSpares are ready for those that come. The kernel waits for programs
	// under way when one is placed, 10 ms and more, but for many at a time.
	mostSpares = 64
)

// New loads the program for sockets that this process makes from now on.
func New(log *slog.Logger, lock sync.Locker) (_ *Program, err error) {
	spec, err := loadPipecopy()
	if err != nil {
		return nil, fmt.Errorf("read the BPF object: %w", err)
	}
	for _, name := range []string{"pages", "newest", "rings_64k", "rings_256k", "rings_1m", "rings_4m"} {
		spec.Maps[name].MaxEntries = mostSlots + 1 // the last one is Quiesce's
	}
	k := &Program{log: log, lock: lock}
	if k.blank, err = newMap(engine.PageSize); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			k.blank.Close()
		}
	}()
	if err := bpfload.LoadAndAssign(spec, &k.objs, nil); err != nil {
		return nil, fmt.Errorf("load the program that copies: %w", err)
	}
	defer func() {
		if err != nil {
			k.objs.Close()
		}
	}()
	group, leave, err := ownCgroup()
	if err != nil {
		return nil, err
	}
	k.leave = leave
	k.link, err = link.AttachCgroup(link.CgroupOptions{Path: group, Attach: ebpf.AttachCGroupSetsockopt, Program: k.objs.SconPipeCopy})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attach the program that copies to %s: %w", group, err), leave())
	}
	for slot := range uint32(mostSlots) {
		k.slots = append(k.slots, mostSlots-1-slot)
	}
	return k, nil
}

// Close takes the kernel side away. Its connections are gone.
func (k *Program) Close() error {
	k.mu.Lock()
	k.over = true
	k.mu.Unlock()
	k.behind.Wait()
	for _, m := range k.spares {
		m.closeMaps()
	}
	err := k.link.Close()
	return errors.Join(err, k.leave(), k.objs.Close(), k.blank.Close())
}

// Quiesce returns when no call copies any more that was under way: to put something
// into a map of maps waits for that.
func (k *Program) Quiesce() error {
	return k.objs.Pages.Put(uint32(mostSlots), uint32(k.blank.FD()))
}

// rings are the maps of rings by their class.
func (k *Program) rings() [4]*ebpf.Map {
	return [4]*ebpf.Map{k.objs.Rings64k, k.objs.Rings256k, k.objs.Rings1m, k.objs.Rings4m}
}

// classOf a ring's size, which is one of a ring can have.
func classOf(size uint64) (class uint32) {
	for size > engine.SmallestRing {
		size /= 4
		class++
	}
	return class
}

// take returns memory for an end: a spare, or new.
func (k *Program) take() (*Memory, error) {
	k.mu.Lock()
	k.refill()
	if n := len(k.spares); n > 0 {
		m := k.spares[n-1]
		k.spares = k.spares[:n-1]
		k.mu.Unlock()
		return m, nil
	}
	k.mu.Unlock()
	return k.make()
}

// refill has spares made, when there is less than half of them. The lock is held.
func (k *Program) refill() {
	if k.over || len(k.spares)+k.making > mostSpares/2 {
		return
	}
	for range mostSpares - len(k.spares) - k.making {
		k.making++
		k.behind.Go(func() {
			m, err := k.make()
			k.mu.Lock()
			defer k.mu.Unlock()
			k.making--
			if err == nil {
				k.spares = append(k.spares, m)
			}
		})
	}
}

// make makes memory for an end, with a slot of its own.
func (k *Program) make() (*Memory, error) {
	k.mu.Lock()
	if len(k.slots) == 0 {
		k.mu.Unlock()
		return nil, fmt.Errorf("%d ends are in use: %w", mostSlots, unix.ENOBUFS)
	}
	m := &Memory{k: k, slot: k.slots[len(k.slots)-1]}
	k.slots = k.slots[:len(k.slots)-1]
	k.mu.Unlock()
	// They wait for the kernel together.
	page := make(chan error, 1)
	go func() { page <- m.makePage() }()
	_, err := m.makeRing(engine.SmallestRing)
	if err = errors.Join(err, <-page); err != nil {
		m.closeMaps()
		k.reap(m.slot)
		return nil, err
	}
	return m, nil
}

// Memory is one end's: a page and rings that only this
// end maps.
type Memory struct {
	k     *Program
	e     *engine.End
	peer  *Memory
	slot  uint32
	page  placed
	rings []ring

	growing bool           // the ring; the broker's lock guards it
	closed  bool           // likewise
	under   sync.WaitGroup // who makes it
}

// ring is one generation of a ring that this end receives by.
type ring struct {
	placed
	size uint64
}

// placed is a map that its place in a map of maps keeps alive. It takes a file only
// until the end has mapped it. (To open it again by its number takes CAP_SYS_ADMIN.)
type placed struct {
	memory *ebpf.Map // nil once it is closed
	taken  bool      // the end has mapped it
}

// file of it; -1 if it is closed.
func (p *placed) file() int {
	if p.memory == nil {
		return -1
	}
	return p.memory.FD()
}

func (p *placed) close() {
	if p.memory != nil {
		p.memory.Close()
		p.memory = nil
	}
}

// Open makes the memory of both ends, and binds their doorbells to it.
func (k *Program) Open(ends [2]*engine.End) error {
	var all [2]*Memory
	for i, e := range ends {
		m, err := k.take()
		if err != nil {
			return err
		}
		m.e, e.Memory, all[i] = e, m, m
		m.peer = m // until there is the other one
	}
	for i, m := range all {
		m.peer = all[1-i]
		place := pipecopyPlace{Slot: m.slot, Peer: m.peer.slot}
		if err := k.objs.Newest.Put(m.slot, uint32(0)); err != nil {
			return fmt.Errorf("note a ring: %w", err)
		}
		if err := k.objs.Places.Put(int32(m.e.Doorbell), place); err != nil {
			return fmt.Errorf("bind a doorbell: %w", err)
		}
	}
	return nil
}

// newMap makes a map that can be mapped.
func newMap(size uint64) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.Array, KeySize: 4, ValueSize: uint32(size), MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE,
	})
	if err != nil {
		return nil, fmt.Errorf("make memory of %d bytes: %w", size, err)
	}
	return m, nil
}

// newMemory makes one, and places it in a map of maps.
func (k *Program) newMemory(outer *ebpf.Map, slot uint32, size uint64) (p placed, err error) {
	m, err := newMap(size)
	if err != nil {
		return p, err
	}
	if err := outer.Put(slot, uint32(m.FD())); err != nil {
		m.Close()
		return p, fmt.Errorf("place memory of %d bytes: %w", size, err)
	}
	return placed{memory: m}, nil
}

func (m *Memory) makePage() (err error) {
	m.page, err = m.k.newMemory(m.k.objs.Pages, m.slot, engine.PageSize)
	return err
}

// makeRing makes the next generation of the ring that this end receives by.
func (m *Memory) makeRing(size uint64) (generation uint32, err error) {
	r, err := m.k.newMemory(m.k.rings()[classOf(size)], m.slot, size)
	if err != nil {
		return 0, err
	}
	m.rings = append(m.rings, ring{r, size})
	return uint32(len(m.rings) - 1), nil
}

func (m *Memory) Files() ([]int, uint64) {
	return []int{m.page.file(), m.rings[0].file()}, m.rings[0].size
}

func (m *Memory) Mapped(generation uint32) error {
	if generation != 0 || m.page.taken {
		return unix.EINVAL
	}
	m.page.taken = true
	m.page.close()
	m.Given(0)
	return nil
}

func (m *Memory) Ring(generation uint32) ([]int, uint64, error) {
	if generation == 0 || int(generation) >= len(m.rings) {
		return nil, 0, unix.EAGAIN
	}
	r := &m.rings[generation]
	if r.taken {
		return nil, 0, unix.EALREADY
	}
	return []int{r.file()}, r.size, nil
}

func (m *Memory) Given(generation uint32) {
	m.rings[generation].taken = true
	m.rings[generation].close()
}

// GrowNow does what Grow does, and waits for the kernel.
func (m *Memory) GrowNow(size uint64) error {
	generation, err := m.peer.makeRing(size)
	if err != nil {
		return err
	}
	if err := m.k.objs.Newest.Put(m.peer.slot, generation<<8|classOf(size)); err != nil {
		return fmt.Errorf("note a ring: %w", err)
	}
	return nil
}

// Grow has the ring made without waiting for the kernel: programs go over when it is
// there.
func (m *Memory) Grow(size uint64) ([]int, uint32, error) {
	peer := m.peer
	if peer.growing {
		return nil, 0, unix.EBUSY
	}
	peer.growing = true
	peer.under.Add(1)
	m.k.behind.Go(func() {
		defer peer.under.Done()
		r, err := m.k.newMemory(m.k.rings()[classOf(size)], peer.slot, size)
		m.k.lock.Lock()
		defer m.k.lock.Unlock()
		peer.growing = false
		if err == nil && !peer.closed {
			peer.rings = append(peer.rings, ring{r, size})
			err = m.k.objs.Newest.Put(peer.slot, uint32(len(peer.rings)-1)<<8|classOf(size))
		} else {
			r.close()
		}
		if err != nil {
			m.k.log.Error("enlarge a ring", "error", err)
		}
	})
	return nil, 0, nil
}

func (m *Memory) Size() uint64 {
	rings := m.peer.rings
	return rings[len(rings)-1].size
}

func (m *Memory) Sent() uint64 {
	var p pipecopyPlace
	if err := m.k.objs.Places.Lookup(int32(m.e.Doorbell), &p); err != nil {
		return 0
	}
	return p.Head
}

// Stop takes the places of both doorbells away: no call from now on copies. One
// under way has the socket's lock, which is not waited for: whoever has the socket
// can keep that for as long as he likes.
func (m *Memory) Stop() {
	for _, e := range []*engine.End{m.e, m.peer.e} {
		_ = m.k.objs.Places.Delete(int32(e.Doorbell))
	}
}

// Wake signals the doorbell, by its other end.
func (m *Memory) Wake() { engine.Signal(m.peer.e.Doorbell) }

// Close takes the places of both doorbells away at once, for both lead to this
// slot, and then frees the slot when no program can be at work with it. They may
// be away already, by the peer's close.
func (m *Memory) Close() {
	m.Stop()
	m.closed = true
	m.closeMaps()
	m.k.behind.Go(func() {
		m.under.Wait() // what comes into the slot still
		m.k.reap(m.slot)
	})
}

func (m *Memory) closeMaps() {
	m.page.close()
	for i := range m.rings {
		m.rings[i].close()
	}
}

// reap frees a slot. Taking something out of a map of maps waits for programs
// that may have found it there.
func (k *Program) reap(slot uint32) {
	var under sync.WaitGroup
	var failed atomic.Bool
	for _, outer := range []*ebpf.Map{k.objs.Pages, k.objs.Rings64k, k.objs.Rings256k, k.objs.Rings1m, k.objs.Rings4m} {
		under.Go(func() {
			if err := outer.Delete(slot); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				failed.Store(true)
			}
		})
	}
	under.Wait()
	if failed.Load() {
		return // it stays as it is: a slot less
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.slots = append(k.slots, slot)
}
