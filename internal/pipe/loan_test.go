package pipe_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe"
)

// Offsets in an end's page and in a loan: libsconpipe/src/page.h.
const (
	pageLent   = 896
	pageLoans  = 1024
	loanStart  = 0
	loanEnd    = 8
	loanOffset = 16
	loanRegion = 24
)

// buffer creates a memfd of size bytes with those seals, and maps it.
func buffer(t *testing.T, size, seals int) (file int, memory []byte) {
	t.Helper()
	file, err := unix.MemfdCreate("buffer", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(file) })
	if err := unix.Ftruncate(file, int64(size)); err != nil {
		t.Fatal(err)
	}
	if memory, err = unix.Mmap(file, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(memory) })
	if _, err := unix.FcntlInt(uintptr(file), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return file, memory
}

const bufferSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE

func (c client) lend(id uint32, file int) answer {
	return c.sendWith(message{op: opLend, id: id}.packet(), unix.UnixRights(file))
}

// lend writes a loan into the page.
func (l mappedEnd) lend(start, end, offset uint64, region byte) {
	n := load(l.page, pageLent)
	at := pageLoans + int(n)*32
	store(l.page, at+loanStart, start)
	store(l.page, at+loanEnd, end)
	store(l.page, at+loanOffset, offset)
	l.page[at+loanRegion] = region
	store(l.page, pageLent, n+1)
}

// Bytes of a loan come from its buffer, those before and after it from the ring.
func TestLoan(t *testing.T) {
	t.Parallel()
	_, socket := serve(t, nil)
	ends, sessions := openEnds(t, socket)
	sender, receiver := ends[0], ends[1]
	file, memory := buffer(t, 1<<16, bufferSeals)
	clear(memory) // allocates its pages
	memory[5000], memory[5999] = 1, 2
	a := sessions[0].lend(sender.answer.id, file)
	if a.errno != 0 || a.number != 1 {
		t.Fatalf("%+v", a)
	}
	sender.send[999], sender.send[2000] = 3, 4
	sender.lend(1000, 2000, 5000, 1)
	store(sender.page, ownHead, 2001)
	sender.ring()
	receiver.await(peerHead, 2001)
	for at, want := range map[int]byte{999: 3, 1000: 1, 1999: 2, 2000: 4} {
		if got := receiver.recv[at]; got != want {
			t.Errorf("byte %d is %d, want %d", at, got, want)
		}
	}
	// A loan that the sender has ended: its bytes are in the ring.
	sender.send[2001] = 5
	sender.lend(2001, 3001, 0, 0)
	store(sender.page, ownHead, 3001)
	sender.ring()
	receiver.await(peerHead, 3001)
	if receiver.recv[2001] != 5 {
		t.Error("the bytes do not come from the ring")
	}
	sessions[0].must(message{op: opTakeBack, id: sender.answer.id, arg: 1})
	if got := sessions[0].ask(message{op: opTakeBack, id: sender.answer.id, arg: 1}); got.errno != unix.EINVAL {
		t.Errorf("taken back twice: %+v", got)
	}
}

// The broker refuses buffers whose pages can be removed or are not allocated.
func TestLendRefused(t *testing.T) {
	t.Parallel()
	_, socket := serve(t, nil)
	ends, sessions := openEnds(t, socket)
	id := ends[0].answer.id
	for name, seals := range map[string]int{
		"shrinks": unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE,
		"holes":   unix.F_SEAL_SHRINK,
	} {
		file, memory := buffer(t, 1<<16, seals)
		clear(memory)
		if got := sessions[0].lend(id, file); got.errno != unix.EPERM {
			t.Errorf("%s: %+v", name, got)
		}
	}
	sparse, _ := buffer(t, 1<<16, bufferSeals)
	if got := sessions[0].lend(id, sparse); got.errno != unix.EINVAL {
		t.Errorf("unallocated pages: %+v", got)
	}
	if got := sessions[0].lend(id, ends[0].answer.files[0]); got.errno != unix.EPERM {
		t.Errorf("a socket: %+v", got)
	}
	if got := sessions[0].ask(message{op: opLend, id: id}); got.errno != unix.EBADF {
		t.Errorf("no file: %+v", got)
	}
	file, memory := buffer(t, 1<<16, bufferSeals)
	clear(memory)
	if err := unix.Fallocate(file, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096); !errors.Is(err, unix.EPERM) {
		t.Errorf("a hole in a buffer that can be lent: %v", err)
	}
	for range 8 {
		if got := sessions[0].lend(id, file); got.errno != 0 {
			t.Errorf("%+v", got)
		}
	}
	if got := sessions[0].lend(id, file); got.errno != unix.ENOBUFS {
		t.Errorf("a ninth: %+v", got)
	}
	a, b := greeted(t, socket), greeted(t, socket)
	sealed, _ := connect(a, b, pipe.Sealed)
	if got := a.lend(sealed.id, file); got.errno != unix.EINVAL {
		t.Errorf("to the engine sealed: %+v", got)
	}
}

// An invalid loan resets its connection.
func TestInvalidLoans(t *testing.T) {
	t.Parallel()
	_, socket := serve(t, nil)
	for name, write := range map[string]func(mappedEnd){
		"unknown region":        func(s mappedEnd) { s.lend(0, 1000, 0, 2) },
		"region 255":            func(s mappedEnd) { s.lend(0, 1000, 0, 255) },
		"beyond the region":     func(s mappedEnd) { s.lend(0, 1000, 1<<16-999, 1) },
		"huge offset":           func(s mappedEnd) { s.lend(0, 1000, 1<<63, 1) },
		"empty":                 func(s mappedEnd) { s.lend(10, 10, 0, 1) },
		"end before start":      func(s mappedEnd) { s.lend(10, 9, 0, 1) },
		"more loans than slots": func(s mappedEnd) { store(s.page, pageLent, 65) },
	} {
		t.Run(name, func(t *testing.T) {
			ends, sessions := openEnds(t, socket)
			file, memory := buffer(t, 1<<16, bufferSeals)
			clear(memory)
			if a := sessions[0].lend(ends[0].answer.id, file); a.errno != 0 {
				t.Fatalf("%+v", a)
			}
			write(ends[0])
			store(ends[0].page, ownHead, 1000)
			ends[0].ring()
			ends[0].ended()
			ends[1].ended()
		})
	}
}
