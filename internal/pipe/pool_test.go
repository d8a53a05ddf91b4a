package pipe_test

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe"
)

// inPool is IN_POOL of libsconpipe/src/page.h.
const inPool = 1 << 31

// Of the page: what the copying side announces.
const (
	peerSwitchAt   = peerHead + 8
	peerGeneration = peerHead + 16
)

// openPooled opens connections of two sessions until both ends of one receive from pools.
func openPooled(t testing.TB, socket string) (a, b client, first, pooled [2]answer) {
	t.Helper()
	a, b = greeted(t, socket), greeted(t, socket)
	first[0], first[1] = connect(a, b, pipe.BPF)
	eventually(t, "a connection with rings of pools", func() bool {
		pooled[0], pooled[1] = connect(a, b, pipe.BPF)
		return pooled[0].number&pooled[1].number&inPool != 0
	})
	return a, b, first, pooled
}

// pageOf maps the page of an end.
func pageOf(t testing.TB, end answer) []byte {
	t.Helper()
	page, err := unix.Mmap(end.files[1], 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(page) })
	return page
}

// A process gets the rings of its own pool, once, and has no more of them made than it has
// connections.
func TestHostilePool(t *testing.T) {
	t.Parallel()
	needBPF(t)
	br, socket := serve(t, nil)
	a, b, first, pooled := openPooled(t, socket)
	for _, c := range []struct {
		who  client
		m    message
		want unix.Errno
	}{
		{b, message{op: opChunk, arg: 1}, unix.EINVAL},
		{b, message{op: opChunk, arg: 1<<32 - 1}, unix.EINVAL},
		{b, message{op: opChunk}, 0},
		{greeted(t, socket), message{op: opChunk}, unix.EINVAL},
		{a, message{op: opMoreRings, id: pooled[1].id}, unix.EBADF},
		{a, message{op: opMoreRings, id: first[0].id}, unix.EINVAL},
	} {
		if got := c.who.ask(c.m); got.errno != c.want {
			t.Errorf("%+v: %v, want %v", c.m, got.errno, c.want)
		}
	}
	before := br.Status().MemoryBytes
	for range 100 {
		a.must(message{op: opMoreRings, id: pooled[0].id})
	}
	if got := b.ask(message{op: opChunk, arg: 1}); got.errno != unix.EINVAL {
		t.Errorf("another chunk: %+v", got)
	}
	if after := br.Status().MemoryBytes; after != before {
		t.Errorf("%d bytes, were %d", after, before)
	}
}

// A receiver that misreports what it has read, or has got, harms nobody but itself.
func TestHostilePoolReader(t *testing.T) {
	t.Parallel()
	needBPF(t)
	_, socket := serve(t, nil)
	a, b, _, liar := openPooled(t, socket)
	page := pageOf(t, liar[1])
	got := b.ask(message{op: opChunk})
	if got.errno != 0 || len(got.files) != 1 {
		t.Fatalf("%+v", got)
	}
	rings, err := unix.Mmap(got.files[0], 0, 64*ringAtStart, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(rings) })

	src := memory(t, 4096)
	send := func(from answer, c byte) error {
		for i := range src {
			src[i] = c
		}
		return submit(from.files[0], kindSend, addr(src), 4096, 32)
	}
	if err := send(liar[0], 'a'); err != nil || rings[0] != 'a' {
		t.Fatalf("%v, %q", err, rings[0])
	}
	// What it has got is taken for unread: the ring stays its own.
	atomic.StoreUint64(word(page, peerHead), 1<<40)
	honest, _ := connect(a, b, pipe.BPF)
	if err := send(honest, 'b'); err != nil || rings[0] != 'a' || rings[ringAtStart] != 'b' {
		t.Errorf("%v, %q and %q", err, rings[0], rings[ringAtStart])
	}
	// It has read what nobody has sent: its connection ends, the other one goes on.
	atomic.StoreUint64(word(page, ownTail), 1<<40)
	if err := send(liar[0], 'c'); err != unix.ECONNRESET {
		t.Errorf("%v, want %v", err, unix.ECONNRESET)
	}
	if err := send(honest, 'd'); err != nil || rings[ringAtStart+4096] != 'd' {
		t.Errorf("%v, %q", err, rings[ringAtStart+4096])
	}
}

// A receiver sees each ring that has bytes: the sender goes to a larger one only after the receiver
// has read some of the ring before, which may have been announced after the larger one was mapped.
func TestPoolRingIsSeen(t *testing.T) {
	t.Parallel()
	needBPF(t)
	_, socket := serve(t, nil)
	_, b, _, pooled := openPooled(t, socket)
	id, page, src := pooled[1].id, pageOf(t, pooled[1]), memory(t, 4096)
	send := func() {
		t.Helper()
		if err := submit(pooled[0].files[0], kindSend, addr(src), 4096, 32); err != nil {
			t.Fatal(err)
		}
	}
	send()
	b.must(message{op: opGrow, id: id, size: 4 * ringAtStart})
	eventually(t, "a larger ring", func() bool { return b.ask(message{op: opRing, id: id, arg: 1}).errno == 0 })
	b.must(message{op: opMapped, id: id, arg: 1})
	send()
	if got := *word(page, peerGeneration); got&inPool == 0 {
		t.Errorf("generation %#x hides the ring of the first bytes", got)
	}
	store(page, ownTail, 1)
	send()
	if got, at := uint32(*word(page, peerGeneration)), *word(page, peerSwitchAt); got != 1 || at != 2*4096 {
		t.Errorf("generation %#x at %d, want 1 at %d", got, at, 2*4096)
	}
}

// Connections that begin after the one for which a pool is made receive from it, at once.
func TestPoolIsAwaited(t *testing.T) {
	t.Parallel()
	needBPF(t)
	_, socket := serve(t, nil)
	a, b := greeted(t, socket), greeted(t, socket)
	for range 17 {
		connect(a, b, pipe.BPF)
	}
	for range 3 {
		if from, to := connect(a, b, pipe.BPF); from.number&to.number&inPool == 0 {
			t.Error("a connection has rings of its own")
		}
	}
}

// After many receivers have not read, connections return to few rings: the hot ones. Those that are
// not read are left out.
func TestPoolHotRings(t *testing.T) {
	t.Parallel()
	needBPF(t)
	_, socket := serve(t, nil)
	a, b, _, pooled := openPooled(t, socket)
	src, ends, pages := memory(t, 4096), [][2]answer{pooled}, [][]byte{pageOf(t, pooled[1])}
	for range 29 {
		from, to := connect(a, b, pipe.BPF)
		ends, pages = append(ends, [2]answer{from, to}), append(pages, pageOf(t, to))
	}
	send := func(i int) {
		t.Helper()
		if err := submit(ends[i][0].files[0], kindSend, addr(src), 1, 32); err != nil {
			t.Fatal(err)
		}
	}
	read := func(i int) { store(pages[i], ownTail, load(pages[i], peerHead)) }
	const unread = 10 // the first ones never read
	for i := range ends {
		send(i)
	}
	for i := unread; i < len(ends); i++ {
		read(i)
	}
	for round := range 3 {
		used := make(map[uint64]bool)
		for i := unread; i < len(ends); i++ {
			send(i)
			used[*word(pages[i], peerGeneration)%(1<<14)] = true
			read(i)
		}
		if len(used) > 8 {
			t.Errorf("round %d: %d rings in use, want 8 at most", round, len(used))
		}
	}
}

// A ring is held by bytes only: a sender of which no byte could be copied keeps none from others.
func TestPoolRingsOfFailedCopies(t *testing.T) {
	t.Parallel()
	needBPF(t)
	_, socket := serve(t, nil)
	a, b, _, failing := openPooled(t, socket)
	other, to := connect(a, b, pipe.BPF)
	page, src := pageOf(t, to), memory(t, 4096)
	send := func(from answer, src uintptr, want error) {
		t.Helper()
		if err := submit(from.files[0], kindSend, src, 1, 32); !errors.Is(err, want) {
			t.Fatalf("%v, want %v", err, want)
		}
	}
	send(other, addr(src), nil)      // to the first ring
	send(failing[0], 1, unix.EFAULT) // to the second one
	store(page, ownTail, 1)          // the first one is read
	send(failing[0], addr(src), nil) // to the first one
	send(other, addr(src), nil)      // to the second one, which has no bytes
	if got := *word(page, peerGeneration) % (1 << 14); got != 1 {
		t.Errorf("ring %d, want 1", got)
	}
}

// What a pool has stays charged to its process when the connections end for which it was enlarged.
func TestPoolCharged(t *testing.T) {
	t.Parallel()
	needBPF(t)
	const chunkBytes = 64 * ringAtStart
	br, socket := serve(t, nil)
	a, b, first, pooled := openPooled(t, socket)
	made := [][2]answer{first, pooled}
	enlarged := func() bool { return b.ask(message{op: opChunk, arg: 1}).errno == 0 }
	for range 100 {
		from, to := connect(a, b, pipe.BPF)
		made = append(made, [2]answer{from, to})
	}
	files := br.PoolFiles()
	a.must(message{op: opMoreRings, id: pooled[0].id})
	if !enlarged() {
		t.Fatal("no second chunk")
	}
	if got := br.PoolFiles(); got != files+1 {
		t.Errorf("pools have %d files, want %d", got, files+1)
	}
	for _, ends := range made {
		a.must(message{op: opClose, id: ends[0].id})
		b.must(message{op: opClose, id: ends[1].id})
	}
	// openPooled has made others.
	const want = 3*chunkBytes + 2*lists*listBytes
	rest := int64(len(br.Status().Connections)) * 2 * ringAtStart
	if got := br.Status().MemoryBytes; got < want || got > want+rest {
		t.Errorf("%d bytes are charged for three chunks and two processes' lists, want %d", got, want)
	}
	a.conn.Close()
	b.conn.Close()
	eventually(t, "the end of all charges", func() bool { return br.Status().MemoryBytes == 0 && br.Files() == 0 })
}
