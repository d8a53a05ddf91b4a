// Package bpf is the engine "bpf": a BPF program copies from the sender's memory into a ring
// that only the receiver maps.
package bpf

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/bpfload"
	"github.com/scon-project/scon/internal/pipe/engine"
)

//go:generate go tool bpf2go -no-global-types -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror -mcpu=v3" -type place -type ended pipecopy pipe_copy.bpf.c
//go:generate llvm-objcopy --wildcard --strip-symbol LBB* pipecopy_bpfel.o
//go:generate ../../../scripts/pack-bpf.sh pipecopy_bpfel

// Program is the kernel side of the engine bpf. The broker loads it when the first connection
// needs it.
//
// An end's slot selects its page and its rings in the program's maps. A slot is reused only
// after all runs of the program that may use it have finished.
type Program struct {
	log    *slog.Logger
	lock   sync.Locker // the broker's
	objs   pipecopyObjects
	link   link.Link
	blank  *ebpf.Map      // for Quiesce
	leave  func() error   // leaves the cgroup
	behind sync.WaitGroup // goroutines that create spares and rings, and free slots
	reaps  chan struct{}  // semaphore of reap
	stops  atomic.Uint64  // doorbells unbound or paused so far
	quiet  atomic.Uint64  // of these, those for which no run copies any more
	quiets sync.Mutex     // held while one goroutine waits for all runs

	mu     sync.Mutex
	slots  []uint32     // free slots
	pools  []uint32     // free numbers of pools
	chunks []uint32     // and of their chunks
	spares [2][]*Memory // memory for future ends: with the smallest ring, with none
	making [2]int       // spares in creation
	over   bool         // Close was called
}

const (
	// mostSlots bounds the ends of connections of the engine bpf.
	mostSlots = 16384
	// mostReaps bounds the slots that are emptied at a time, each by threads that wait in
	// the kernel: after a change of rules thousands are free at once.
	mostReaps = 64
	// mostSpares bounds the spares. An update of a map of maps waits for running
	// programs, 10 ms and more, but concurrent updates wait together.
	mostSpares = 64
)

// New loads the program and attaches it to the sockets that this process creates from now on.
// The lock is the broker's. It needs Linux 6.1.
func New(log *slog.Logger, lock sync.Locker) (_ *Program, err error) {
	spec, err := loadPipecopy()
	if err != nil {
		return nil, fmt.Errorf("read the BPF object: %w", err)
	}
	for _, name := range []string{"pages", "newest", "held", "rings_64k", "rings_256k", "rings_1m", "rings_4m"} {
		spec.Maps[name].MaxEntries = mostSlots + 1 // the last entry is for Quiesce
	}
	spec.Maps["silent"].MaxEntries = mostSlots
	spec.Maps["lists"].MaxEntries = mostPools
	spec.Maps["hots"].MaxEntries = mostPools
	spec.Maps["pools"].MaxEntries = mostPools * poolChunks
	spec.Maps["chunks"].MaxEntries = mostChunks
	spec.Maps["holders"].MaxEntries = mostChunks * chunkRings
	if err := spec.Variables["files_at"].Set(filesAt()); err != nil {
		return nil, fmt.Errorf("set a variable of the copy program: %w", err)
	}
	k := &Program{log: log, lock: lock, reaps: make(chan struct{}, mostReaps), slots: numbers(mostSlots), pools: numbers(mostPools), chunks: numbers(mostChunks)}
	if k.blank, err = newMap(engine.PageSize); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			k.blank.Close()
		}
	}()
	if err := bpfload.LoadAndAssign(spec, &k.objs, nil); err != nil {
		return nil, fmt.Errorf("load the copy program: %w", err)
	}
	defer func() {
		if err != nil {
			k.objs.Close()
		}
	}()
	if err := k.checkBell(); err != nil {
		return nil, err
	}
	group, leave, err := ownCgroup()
	if err != nil {
		return nil, err
	}
	k.leave = leave
	k.link, err = link.AttachCgroup(link.CgroupOptions{Path: group, Attach: ebpf.AttachCGroupSetsockopt, Program: k.objs.SconPipeCopy})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attach the copy program to %s: %w", group, err), leave())
	}
	return k, nil
}

// Close detaches the program. It requires that all connections have been closed.
func (k *Program) Close() error {
	k.mu.Lock()
	k.over = true
	k.mu.Unlock()
	k.behind.Wait()
	for _, m := range slices.Concat(k.spares[:]...) {
		m.closeMaps()
	}
	err := k.link.Close()
	return errors.Join(err, k.leave(), k.objs.Close(), k.blank.Close())
}

// Quiesce waits until no run of the program copies for doorbells that Stop has unbound or Pause
// has paused: an update of a map of maps waits for all runs that have started.
func (k *Program) Quiesce() error {
	wanted := k.stops.Load()
	if k.quiet.Load() >= wanted {
		return nil
	}
	k.quiets.Lock()
	defer k.quiets.Unlock()
	if k.quiet.Load() >= wanted {
		return nil
	}
	stops := k.stops.Load()
	if err := k.objs.Pages.Put(uint32(mostSlots), uint32(k.blank.FD())); err != nil {
		return fmt.Errorf("wait for calls of the program: %w", err)
	}
	k.quiet.Store(stops)
	return nil
}

// rings returns the maps of rings by class.
func (k *Program) rings() [4]*ebpf.Map {
	return [4]*ebpf.Map{k.objs.Rings64k, k.objs.Rings256k, k.objs.Rings1m, k.objs.Rings4m}
}

// classOf returns the class of a valid ring size: 0 for SmallestRing, 3 for LargestRing.
func classOf(size uint64) (class uint32) {
	for size > engine.SmallestRing {
		size /= 4
		class++
	}
	return class
}

// take returns memory for an end, with a ring of size bytes, 0 for none: a spare, or new memory.
func (k *Program) take(size uint64) (*Memory, error) {
	if size > engine.SmallestRing {
		return k.make(size)
	}
	k.mu.Lock()
	k.refill(size)
	if spares := &k.spares[kindOf(size)]; len(*spares) > 0 {
		last := len(*spares) - 1
		m := (*spares)[last]
		*spares = (*spares)[:last]
		k.mu.Unlock()
		return m, nil
	}
	k.mu.Unlock()
	return k.make(size)
}

// kindOf returns of which kind spares with a ring of size bytes are.
func kindOf(size uint64) int {
	if size == 0 {
		return 1
	}
	return 0
}

// refill starts the creation of spares of a kind when less than half of them are left. It
// requires the lock.
func (k *Program) refill(size uint64) {
	spares, making := &k.spares[kindOf(size)], &k.making[kindOf(size)]
	if k.over || len(*spares)+*making > mostSpares/2 {
		return
	}
	for range mostSpares - len(*spares) - *making {
		*making++
		k.behind.Go(func() {
			m, err := k.make(size)
			k.mu.Lock()
			defer k.mu.Unlock()
			*making--
			if err == nil {
				*spares = append(*spares, m)
			}
		})
	}
}

// make creates memory for an end, in a free slot, with a ring of size bytes, 0 for none. ENOBUFS:
// there is no slot.
func (k *Program) make(size uint64) (*Memory, error) {
	k.mu.Lock()
	if len(k.slots) == 0 {
		k.mu.Unlock()
		return nil, fmt.Errorf("%d ends are in use: %w", mostSlots, unix.ENOBUFS)
	}
	m := &Memory{k: k, slot: k.slots[len(k.slots)-1]}
	k.slots = k.slots[:len(k.slots)-1]
	k.mu.Unlock()
	// Concurrently: both wait for running programs.
	page := make(chan error, 1)
	go func() { page <- m.makePage() }()
	if err := errors.Join(m.makeRing(size), <-page); err != nil {
		m.closeMaps()
		k.behind.Go(func() { k.reap(m) })
		return nil, err
	}
	return m, nil
}

// Memory is the memory of one end: a page and rings to receive from, which only this end maps.
type Memory struct {
	k      *Program
	e      *engine.End
	peer   *Memory
	pool   *Pool // that it receives from until it has a ring of its own; nil: none
	slot   uint32
	page   mapInSlot
	rings  []ring
	bell   uint64 // cookie of its doorbell
	paused bool   // guarded by the broker's lock
	sent   uint64 // bytes, once the doorbell is unbound; guarded by the broker's lock
	stale  bool   // the doorbell is unbound; guarded by the broker's lock
	kept   func() // called once its ring of the pool is read; nil: that is given up

	classes [4]bool // of rings that were stored in its slot, or may be

	newest   uint32         // generation of the ring that the program sends to, or will next
	growing  bool           // a ring is in creation; guarded by the broker's lock
	closed   bool           // guarded by the broker's lock
	creating sync.WaitGroup // the goroutine that creates it
}

// ring is one generation of the ring that this end receives from.
type ring struct {
	mapInSlot
	size uint64 // bytes
}

// mapInSlot is a map that is referenced from a map of maps. The broker keeps a file of it only
// until the end has mapped it: to open a map by its ID needs CAP_SYS_ADMIN.
type mapInSlot struct {
	memory *ebpf.Map // nil once it is closed
	taken  bool      // the end has mapped it
}

// file returns the map's file; -1 if it is closed.
func (p *mapInSlot) file() int {
	if p.memory == nil {
		return -1
	}
	return p.memory.FD()
}

func (p *mapInSlot) close() {
	if p.memory != nil {
		p.memory.Close()
		p.memory = nil
	}
}

// Open creates the doorbells and the memory of both ends, with rings of size bytes; an end that
// has a pool gets none.
func (k *Program) Open(ends [2]*engine.End, size uint64, pools [2]*Pool) error {
	pair, err := engine.Doorbells(unix.SOCK_SEQPACKET)
	if err != nil {
		return err
	}
	ends[0].Doorbell, ends[1].Doorbell = pair[0], pair[1]
	var all [2]*Memory
	for i, e := range ends {
		first := size
		if pools[i] != nil {
			first = 0
		}
		m, err := k.take(first)
		if err != nil {
			return err
		}
		m.pool = pools[i]
		m.e, e.Memory, all[i] = e, m, m
		m.peer = m // for Close, if the other end fails
	}
	for i, m := range all {
		m.peer = all[1-i]
		if m.bell, err = k.restrict(m.e.Doorbell); err != nil {
			return err
		}
		place := pipecopyPlace{Slot: m.slot, Peer: m.peer.slot, Ring: m.peer.state()}
		if m.peer.pool != nil {
			place.Pool = m.peer.pool.number
		}
		if err := errors.Join(m.setNewest(), k.objs.Held.Put(m.slot, uint32(0))); err != nil {
			return fmt.Errorf("prepare an end: %w", err)
		}
		if err := k.objs.Places.Put(int32(m.e.Doorbell), place); err != nil {
			return fmt.Errorf("bind a doorbell: %w", err)
		}
	}
	return nil
}

// newMap creates an array of one value of size bytes that processes can mmap.
func newMap(size uint64) (*ebpf.Map, error) { return newArray(size, 1) }

// newArray creates an array of values of size bytes that processes can mmap.
func newArray(size uint64, values uint32) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.Array, KeySize: 4, ValueSize: uint32(size), MaxEntries: values, Flags: unix.BPF_F_MMAPABLE,
	})
	if err != nil {
		return nil, fmt.Errorf("create a map of %d bytes: %w", uint64(values)*size, err)
	}
	return m, nil
}

// newMemory creates a map and stores it in a slot of a map of maps.
func (k *Program) newMemory(outer *ebpf.Map, slot uint32, size uint64) (p mapInSlot, err error) {
	m, err := newMap(size)
	if err != nil {
		return p, err
	}
	if err := outer.Put(slot, uint32(m.FD())); err != nil {
		m.Close()
		return p, fmt.Errorf("store a map of %d bytes in its slot: %w", size, err)
	}
	return mapInSlot{memory: m}, nil
}

func (m *Memory) makePage() (err error) {
	m.page, err = m.k.newMemory(m.k.objs.Pages, m.slot, engine.PageSize)
	return err
}

// makeRing creates the first ring that this end receives from. Without a size that is any ring of
// its pool, which it does not map.
func (m *Memory) makeRing(size uint64) error {
	if size == 0 {
		m.rings = append(m.rings, ring{mapInSlot{taken: true}, poolRing})
		return nil
	}
	m.classes[classOf(size)] = true
	r, err := m.k.newMemory(m.k.rings()[classOf(size)], m.slot, size)
	if err == nil {
		m.rings = append(m.rings, ring{r, size})
	}
	return err
}

func (m *Memory) Files() ([]int, uint64) {
	if m.IsPooled() {
		return []int{m.page.file()}, poolRing
	}
	return []int{m.page.file(), m.rings[0].file()}, m.rings[0].size
}

// IsPooled reports whether the end was made without a ring of its own.
func (m *Memory) IsPooled() bool { return m.pool != nil }

// Mapped has the program send to a larger ring once the end has mapped it.
func (m *Memory) Mapped(generation uint32) error {
	if generation > 0 {
		return m.mappedRing(generation)
	}
	if m.page.taken {
		return unix.EINVAL
	}
	m.page.taken = true
	m.page.close()
	m.Given(0)
	return nil
}

// IsMapped reports whether the process has got its page. The lock is held.
func (m *Memory) IsMapped() bool { return m.page.taken }

func (m *Memory) mappedRing(generation uint32) error {
	if generation <= m.newest || int(generation) >= len(m.rings) || !m.rings[generation].taken {
		return unix.EINVAL
	}
	m.newest = generation
	return m.setNewest()
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

// Grow starts the creation of a larger ring that this end receives from, and returns at once.
// The program sends to it after Mapped. EBUSY: the previous one is not mapped yet.
func (m *Memory) Grow(size uint64) ([]int, uint32, error) {
	if m.growing || int(m.newest) < len(m.rings)-1 {
		return nil, 0, unix.EBUSY
	}
	m.growing = true
	m.classes[classOf(size)] = true
	m.creating.Add(1)
	m.k.behind.Go(func() {
		defer m.creating.Done()
		r, err := m.k.newMemory(m.k.rings()[classOf(size)], m.slot, size)
		m.k.lock.Lock()
		defer m.k.lock.Unlock()
		m.growing = false
		if err == nil && !m.closed {
			m.rings = append(m.rings, ring{r, size})
		} else {
			r.close()
		}
		if err != nil {
			m.k.log.Error("pipe: enlarge a ring", "error", err)
		}
	})
	return nil, m.newest + 1, nil
}

// Size returns the size of the newest ring that this end receives from.
func (m *Memory) Size() uint64 {
	return m.rings[len(m.rings)-1].size
}

func (m *Memory) Sent() uint64 {
	if m.stale {
		return m.sent
	}
	var p pipecopyPlace
	if err := m.k.objs.Places.Lookup(int32(m.e.Doorbell), &p); err == nil {
		m.sent = p.Head
	}
	return m.sent
}

func (m *Memory) Held() (n int) {
	for _, r := range m.rings {
		if r.memory != nil {
			n++
		}
	}
	if m.page.memory != nil {
		n++
	}
	return n
}

// Stop unbinds both doorbells: no later call copies. It does not wait for a call in progress,
// which holds the socket's lock: a process can hold that for as long as it likes.
func (m *Memory) Stop() {
	for _, end := range []*Memory{m, m.peer} {
		if end.stale {
			continue
		}
		end.Sent()
		if m.k.objs.Places.Delete(int32(end.e.Doorbell)) == nil {
			m.k.stops.Add(1)
			end.stale = true
		}
	}
}

// Ended tells the peer how much this end, which has closed the connection or has ended, has read
// of its ring. It comes before Stop.
func (m *Memory) Ended() error {
	_, err := m.k.objs.SconPipeEnded.Run(&ebpf.RunOptions{Context: pipecopyEnded{Slot: m.slot, Peer: m.peer.slot}})
	if err != nil {
		return fmt.Errorf("tell an end what its peer has read: %w", err)
	}
	return nil
}

// Wake signals this end's doorbell by writing to the other end of the pair.
func (m *Memory) Wake() { engine.Signal(m.peer.e.Doorbell) }

// Close unbinds both doorbells, which refer to this slot, at once, and later frees the slot
// when no program can be using it. The peer's Close may have unbound them already.
func (m *Memory) Close() {
	m.Stop()
	m.closed = true
	if m.paused { // its cookie belongs to no other socket later
		if err := m.unsilence(); err != nil {
			m.k.log.Error("pipe: forget a paused doorbell", "error", err)
		}
	}
	m.closeMaps()
	m.k.behind.Go(func() {
		m.creating.Wait() // a ring may still be stored in the slot
		if m.kept != nil {
			m.awaitRead()
		}
		m.k.reap(m)
	})
}

func (m *Memory) closeMaps() {
	m.page.close()
	for i := range m.rings {
		m.rings[i].close()
	}
}

// reap frees a slot.
func (k *Program) reap(m *Memory) {
	k.reaps <- struct{}{}
	defer func() { <-k.reaps }()
	if !k.repeat(func() bool { return k.empty(m) }) {
		return
	}
	k.free(&k.slots, m.slot)
}

// repeatPause is the time before what has failed is repeated.
const repeatPause = time.Second

// repeat repeats what fails, such as for want of memory. It reports false if the program is closed
// before.
func (k *Program) repeat(done func() bool) bool {
	for !done() {
		if k.isOver() {
			return false
		}
		time.Sleep(repeatPause)
	}
	return true
}

func (k *Program) isOver() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.over
}

// empty deletes the entries of a slot. A deletion from a map of maps waits for the programs
// that may have looked the entry up.
func (k *Program) empty(m *Memory) bool {
	outers := []*ebpf.Map{k.objs.Pages}
	for class, outer := range k.rings() {
		if m.classes[class] {
			outers = append(outers, outer)
		}
	}
	var deleting sync.WaitGroup
	var failed atomic.Bool
	for _, outer := range outers {
		deleting.Go(func() {
			if !deleted(outer, m.slot) {
				failed.Store(true)
			}
		})
	}
	deleting.Wait()
	return !failed.Load()
}
