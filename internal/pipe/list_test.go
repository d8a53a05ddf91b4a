package pipe_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe"
)

// Of the page: where an end asks to be listed; what its peer knows of its waits.
const (
	ownListWait = ownReadWait + 16
	ownListAs   = ownListWait + 4
)

// Of libsconpipe/src/list.h.
const (
	listIndex   = 256 // of a chunk: the lists
	listBytes   = 256 + 4*listEntries
	lists       = 16
	listEntries = 4096
	listHead    = 0
	listTaken   = 128
	listSleeps  = 132
	listFirst   = 256
)

func half(m []byte, at int) *uint32 { return (*uint32)(unsafe.Pointer(&m[at])) }

// listed is two ends, of which one has asked to be listed.
type listed struct {
	ends     [2]answer
	from, to []byte // their pages
	src      []byte
	rung     uint32
}

func openListed(t testing.TB, ends [2]answer) *listed {
	t.Helper()
	return &listed{ends: ends, from: pageOf(t, ends[0]), to: pageOf(t, ends[1]), src: memory(t, 4096)}
}

// listsOf maps the lists of a process.
func listsOf(t testing.TB, c client) []byte {
	t.Helper()
	got := c.ask(message{op: opChunk, arg: listIndex})
	if got.errno != 0 || len(got.files) != 1 {
		t.Fatalf("%+v", got)
	}
	m, err := unix.Mmap(got.files[0], 0, lists*listBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(m) })
	return m
}

// ask asks to be listed.
func (l *listed) ask(as uint32) {
	atomic.StoreUint32(half(l.to, ownListAs), as)
	atomic.AddUint32(half(l.to, ownListWait), 1)
}

// send sends a byte, and checks whether the doorbell has to ring.
func (l *listed) send(t *testing.T, rings bool) {
	t.Helper()
	if err := submit(l.ends[0].files[0], kindSend, addr(l.src), 1, 32); err != nil {
		t.Fatal(err)
	}
	rung := atomic.LoadUint32(half(l.from, peerReadWait))
	if (rung != l.rung) != rings {
		t.Errorf("the doorbell has to ring: %v, want %v", rung != l.rung, rings)
	}
	l.rung = rung
}

// A connection is listed once for each time it asks, as what it says, and only if bytes were sent. The
// doorbell has to ring only if a thread may be asleep.
func TestListed(t *testing.T) {
	t.Parallel()
	needBPF(t)
	_, socket := serve(t, nil)
	_, b, _, pooled := openPooled(t, socket)
	l, list := openListed(t, pooled), listsOf(t, b)[3*listBytes:]
	l.ask(3<<24 | 77)
	if err := submit(l.ends[0].files[0], kindSync, 0, 0, 32); err != nil {
		t.Fatal(err)
	}
	l.check(t, list)
	l.send(t, false)
	l.check(t, list, 77)
	l.send(t, false)
	l.check(t, list, 77)
	atomic.AddUint32(half(list, listSleeps), 1)
	l.ask(3<<24 | 78)
	l.send(t, true)
	l.check(t, list, 77, 78)
	l.send(t, false)
	atomic.AddUint32(half(l.to, ownReadWait), 1)
	l.send(t, true)
	l.check(t, list, 77, 78)
}

// check compares the entries of a list.
func (l *listed) check(t *testing.T, list []byte, want ...uint32) {
	t.Helper()
	got := make([]uint32, atomic.LoadUint32(half(list, listHead)))
	for i := range got {
		got[i] = atomic.LoadUint32(half(list, listFirst+4*i)) & (1<<24 - 1)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("listed: %v, want %v", got, want)
	}
}

// A receiver that writes anything into its lists, or asks for a list that does not exist, is told by
// its doorbell. It harms no other process.
func TestHostileList(t *testing.T) {
	t.Parallel()
	needBPF(t)
	_, socket := serve(t, nil)
	a, b, _, pooled := openPooled(t, socket)
	honest, to := connect(b, a, pipe.BPF)
	l, other := openListed(t, pooled), openListed(t, [2]answer{honest, to})
	list, others := listsOf(t, b), listsOf(t, a)
	for _, c := range []struct {
		what  string
		as    uint32
		words map[int]uint32
		rings bool
	}{
		{"no such list", lists << 24, nil, true},
		{"the last number", 1<<32 - 1, nil, true},
		{"head far beyond", 0, map[int]uint32{listHead: 1 << 31}, true},
		{"taken far beyond", 0, map[int]uint32{listHead: 0, listTaken: 1 << 31}, true},
		{"taken beyond head", 0, map[int]uint32{listHead: 5, listTaken: 6}, true},
		{"full", 0, map[int]uint32{listHead: listEntries, listTaken: 0}, true},
		{"head before its end", 0, map[int]uint32{listHead: 1<<32 - 1, listTaken: 1<<32 - 1}, false},
	} {
		for at, value := range c.words {
			atomic.StoreUint32(half(list, at), value)
		}
		l.ask(c.as)
		t.Log(c.what)
		l.send(t, c.rings)
		other.ask(1)
		other.send(t, false)
	}
	other.check(t, others, 1, 1, 1, 1, 1, 1, 1)
}

// FuzzLists: whatever a process writes into its lists, and asks for, what others send to it arrives.
func FuzzLists(f *testing.F) {
	needBPF(f)
	_, socket := serve(f, nil)
	a, b, _, pooled := openPooled(f, socket)
	list := listsOf(f, b)
	l := openListed(f, pooled)
	from, to := connect(a, b, pipe.BPF)
	other := openListed(f, [2]answer{from, to})
	for _, at := range []int{listHead, listTaken, listSleeps, listFirst} {
		f.Add(write(at, 1), uint32(5))
		f.Add(write(at, 1<<32-1), uint32(lists<<24))
	}
	f.Fuzz(func(t *testing.T, script []byte, as uint32) {
		if len(script) > 600 {
			return
		}
		writePage(t, list, script, func() {
			l.ask(as)
			_ = submit(l.ends[0].files[0], kindSend, addr(l.src), 1, 32)
		})
		head := load(other.to, peerHead)
		store(other.to, ownTail, head)
		if err := submit(other.ends[0].files[0], kindSend, addr(other.src), 1, 32); err != nil {
			t.Fatal(err)
		}
		if got := load(other.to, peerHead); got != head+1 {
			t.Fatalf("%d bytes have arrived, want %d", got, head+1)
		}
	})
}
