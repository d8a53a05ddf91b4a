package pipe_test

import (
	"encoding/binary"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe"
)

// Requests of a process on its doorbell: libsconpipe/src/entry.h.
const (
	solPipe  = 0x5043
	kindSend = 1
	kindSync = 2
	kindFin  = 3
)

// Offsets in an end's page: libsconpipe/src/page.h.
const (
	ownTail     = 128
	peerHead    = 384
	peerRing    = 384 + 16 // generation
	peerFin     = 384 + 20
	ringAtStart = 64 << 10
)

// submit submits an entry of size bytes on a doorbell.
func submit(doorbell int, kind uint32, src uintptr, length uint32, size int) error {
	entry := make([]byte, max(size, 64))
	binary.NativeEndian.PutUint32(entry, kind)
	binary.NativeEndian.PutUint32(entry[4:], length)
	binary.NativeEndian.PutUint64(entry[8:], uint64(src))
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(doorbell), solPipe, uintptr(kind),
		uintptr(unsafe.Pointer(&entry[0])), uintptr(size), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// pair is a connection of the engine bpf whose pages and rings the test maps.
type pair struct {
	client, server answer
	sessions       [2]client // the client's, the server's
	page, ring     [2][]byte
}

func openPair(t *testing.T, socket string) pair {
	t.Helper()
	a, b := greeted(t, socket), greeted(t, socket)
	p := pair{sessions: [2]client{a, b}}
	p.client, p.server = connect(a, b, pipe.BPF)
	for i, end := range []answer{p.client, p.server} {
		for j, to := range []*[]byte{&p.page[i], &p.ring[i]} {
			size := []int{os.Getpagesize(), int(end.size)}[j]
			m, err := unix.Mmap(end.files[1+j], 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Munmap(m) })
			*to = m
		}
	}
	return p
}

// word returns the 64-bit counter at an offset of a page.
func word(page []byte, at int) *uint64 { return (*uint64)(unsafe.Pointer(&page[at])) }

// memory returns populated memory that Go's runtime does not move.
func memory(t testing.TB, size int) []byte {
	t.Helper()
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(m) })
	return m
}

func addr(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }

// The program sends to a larger ring only after the receiver has mapped it: a process that
// shares the connection cannot get the ring by itself.
func TestRingBeforeMapped(t *testing.T) {
	t.Parallel()
	needBPF(t)
	_, socket := serve(t, nil)
	p := openPair(t, socket)
	receiver, id, src := p.sessions[1], p.server.id, memory(t, 4096)
	ring := func() uint32 {
		if err := submit(p.client.files[0], kindSend, addr(src), 1, 32); err != nil {
			t.Fatal(err)
		}
		return uint32(load(p.page[1], peerRing))
	}
	p.sessions[0].must(message{op: opMapped, id: p.client.id})
	receiver.must(message{op: opMapped, id: id})
	receiver.must(message{op: opGrow, id: id, size: 256 << 10})
	var got answer
	eventually(t, "a larger ring", func() bool {
		if early := receiver.ask(message{op: opMapped, id: id, arg: 1}); early.errno != unix.EINVAL {
			t.Fatalf("mapped before it was given: %+v", early)
		}
		got = receiver.ask(message{op: opRing, id: id, arg: 1})
		return got.errno == 0
	})
	if len(got.files) != 1 || got.size != 256<<10 {
		t.Fatalf("%+v", got)
	}
	if again := receiver.ask(message{op: opGrow, id: id, size: 1 << 20}); again.errno != unix.EBUSY {
		t.Errorf("another one before: %+v", again)
	}
	if at := ring(); at != 0 {
		t.Errorf("the program sends to ring %d", at)
	}
	receiver.must(message{op: opMapped, id: id, arg: 1})
	if again := receiver.ask(message{op: opMapped, id: id, arg: 1}); again.errno != unix.EINVAL {
		t.Errorf("mapped twice: %+v", again)
	}
	if at := ring(); at != 1 {
		t.Errorf("the program sends to ring %d", at)
	}
}

// The program copies only the sender's own memory, and only into its peer's ring.
func TestHostileSender(t *testing.T) {
	t.Parallel()
	needBPF(t)
	_, socket := serve(t, nil)
	p := openPair(t, socket)
	src := memory(t, 1<<20)
	for i := range src {
		src[i] = byte(i)
	}
	doorbell := p.client.files[0]
	for name, c := range map[string]struct {
		err    error
		kind   uint32
		src    uintptr
		length uint32
		size   int
	}{
		"a kernel address":   {unix.EFAULT, kindSend, uintptr(0xffffffff81000000 & ^uint64(0)), 100, 32},
		"the last address":   {unix.EFAULT, kindSend, ^uintptr(0) - 50, 100, 32},
		"an unmapped page":   {unix.EFAULT, kindSend, 4096, 100, 32},
		"a short entry":      {unix.EINVAL, kindSend, addr(src), 100, 31},
		"a long entry":       {unix.EINVAL, kindSend, addr(src), 100, 33},
		"a very short entry": {unix.EINVAL, kindSend, addr(src), 100, 4},
		"an unknown kind":    {unix.EINVAL, 99, addr(src), 100, 32},
		"no bytes":           {unix.EAGAIN, kindSend, addr(src), 0, 32},
	} {
		if err := submit(doorbell, c.kind, c.src, c.length, c.size); !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", name, err, c.err)
		}
	}
	if head := *word(p.page[1], peerHead); head != 0 {
		t.Fatalf("the receiver's head is %d", head)
	}
	// The program ignores the head in the sender's page: it keeps its own.
	*word(p.page[0], 0) = 1 << 40
	if err := submit(doorbell, kindSend, addr(src), 1<<30, 32); err != nil {
		t.Fatal(err)
	}
	if head := *word(p.page[1], peerHead); head != ringAtStart {
		t.Errorf("the receiver's head is %d", head)
	}
	for i, v := range p.ring[1] {
		if v != byte(i) {
			t.Fatalf("byte %d is %d", i, v)
		}
	}
	if err := submit(doorbell, kindSend, addr(src), 1, 32); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("into a full ring: %v", err)
	}
	// The other direction has its own ring.
	if p.ring[0][0] != 0 || *word(p.page[0], peerHead) != 0 {
		t.Error("bytes in the sender's ring")
	}
	if err := submit(doorbell, kindFin, 0, 0, 32); err != nil || p.page[1][peerFin] != 1 {
		t.Errorf("FIN: %v", err)
	}
	if err := submit(doorbell, kindSend, addr(src), 1, 32); !errors.Is(err, unix.EPIPE) {
		t.Errorf("after FIN: %v", err)
	}
}

// Copies of any length wrap around the ring's end correctly.
func TestRingEnd(t *testing.T) {
	t.Parallel()
	needBPF(t)
	_, socket := serve(t, nil)
	p := openPair(t, socket)
	src := memory(t, 1<<18)
	for i := range src {
		src[i] = byte(i*7 + i>>8)
	}
	var head uint64
	for i := range uint64(3000) {
		n := (i*i*31 + i) % ringAtStart
		from := int(i) % 4096
		if err := submit(p.client.files[0], kindSend, addr(src[from:]), uint32(n), 32); n > 0 && err != nil {
			t.Fatalf("%d bytes at %d: %v", n, head, err)
		}
		for j := range n {
			if got := p.ring[1][(head+j)%ringAtStart]; got != src[uint64(from)+j] {
				t.Fatalf("byte %d of %d at %d is %d, want %d", j, n, head, got, src[uint64(from)+j])
			}
		}
		head += n
		if got := *word(p.page[1], peerHead); got != head {
			t.Fatalf("head is %d, want %d", got, head)
		}
		*word(p.page[1], ownTail) = head
	}
}

// A receiver whose tail is beyond the head resets its own connection.
func TestHostileReceiver(t *testing.T) {
	t.Parallel()
	needBPF(t)
	_, socket := serve(t, nil)
	src := memory(t, 4096)
	for _, tail := range []uint64{1001, 1 << 63, ^uint64(0)} {
		p := openPair(t, socket)
		if err := submit(p.client.files[0], kindSend, addr(src), 1000, 32); err != nil {
			t.Fatal(err)
		}
		*word(p.page[1], ownTail) = tail
		if err := submit(p.client.files[0], kindSend, addr(src), 1000, 32); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("tail %d: %v", tail, err)
		}
		if head := *word(p.page[1], peerHead); head != 1000 {
			t.Errorf("tail %d: head %d", tail, head)
		}
	}
}

// A doorbell that a process keeps after its connection's end copies nothing, even if a new
// connection uses the same slot.
func TestReplayedDoorbell(t *testing.T) {
	t.Parallel()
	needBPF(t)
	_, socket := serve(t, nil)
	src := memory(t, 4096)
	a, b := greeted(t, socket), greeted(t, socket)
	first, second := connect(a, b, pipe.BPF)
	a.must(message{op: opClose, id: first.id})
	b.must(message{op: opClose, id: second.id})
	var later []pair
	for range 4 {
		later = append(later, openPair(t, socket))
	}
	for _, old := range []int{first.files[0], second.files[0]} {
		// The socket is unbound, and has no such option.
		if err := submit(old, kindSend, addr(src), 100, 32); !errors.Is(err, unix.EOPNOTSUPP) {
			t.Error(err)
		}
	}
	for _, p := range later {
		if *word(p.page[0], peerHead) != 0 || *word(p.page[1], peerHead) != 0 {
			t.Error("another connection got bytes")
		}
	}
	// A socket that the broker did not create.
	own, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(own[0])
	defer unix.Close(own[1])
	if err := submit(own[0], kindSend, addr(src), 100, 32); err == nil {
		t.Error("no error on a socket that the broker did not create")
	}
}

// load and store access a counter that another thread uses, too.
func load(page []byte, at int) uint64     { return atomic.LoadUint64(word(page, at)) }
func store(page []byte, at int, v uint64) { atomic.StoreUint64(word(page, at), v) }
