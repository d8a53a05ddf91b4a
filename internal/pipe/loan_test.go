package pipe_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe"
)

// Places in an end's page.
const (
	pageLent   = 896
	pageLoans  = 1024
	loanStart  = 0
	loanEnd    = 8
	loanOffset = 16
	loanRegion = 24
)

// buffer is memory to send from: of a file that cannot be taken away.
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

// lend notes a loan of the next positions.
func (l lane) lend(start, end, offset uint64, region byte) {
	n := load(l.page, pageLent)
	at := pageLoans + int(n)*32
	store(l.page, at+loanStart, start)
	store(l.page, at+loanEnd, end)
	store(l.page, at+loanOffset, offset)
	l.page[at+loanRegion] = region
	store(l.page, pageLent, n+1)
}

// Bytes come from where they were lent, and from the ring before and after.
func TestLoan(t *testing.T) {
	t.Parallel()
	_, socket := serve(t, nil)
	lanes, sessions := openLanes(t, socket)
	sender, receiver := lanes[0], lanes[1]
	file, memory := buffer(t, 1<<16, bufferSeals)
	clear(memory) // its pages are there now
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
	// A loan that was taken back: its bytes are in the ring.
	sender.send[2001] = 5
	sender.lend(2001, 3001, 0, 0)
	store(sender.page, ownHead, 3001)
	sender.ring()
	receiver.await(peerHead, 3001)
	if receiver.recv[2001] != 5 {
		t.Error("a loan that was taken back was read")
	}
	sessions[0].must(message{op: opTakeBack, id: sender.answer.id, arg: 1})
	if got := sessions[0].ask(message{op: opTakeBack, id: sender.answer.id, arg: 1}); got.errno != unix.EINVAL {
		t.Errorf("taken back twice: %+v", got)
	}
}

// Memory that could be taken away, or that is not there, is not borrowed.
func TestLoanOfWhat(t *testing.T) {
	t.Parallel()
	_, socket := serve(t, nil)
	lanes, sessions := openLanes(t, socket)
	id := lanes[0].answer.id
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
	absent, _ := buffer(t, 1<<16, bufferSeals)
	if got := sessions[0].lend(id, absent); got.errno != unix.EINVAL {
		t.Errorf("without pages: %+v", got)
	}
	if got := sessions[0].lend(id, lanes[0].answer.files[0]); got.errno != unix.EPERM {
		t.Errorf("a socket: %+v", got)
	}
	if got := sessions[0].ask(message{op: opLend, id: id}); got.errno != unix.EBADF {
		t.Errorf("nothing: %+v", got)
	}
	file, memory := buffer(t, 1<<16, bufferSeals)
	clear(memory)
	if err := unix.Fallocate(file, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096); !errors.Is(err, unix.EPERM) {
		t.Errorf("a hole in what can be lent: %v", err)
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

// A loan that cannot be ends its connection.
func TestLoanLies(t *testing.T) {
	t.Parallel()
	_, socket := serve(t, nil)
	for name, lie := range map[string]func(lane){
		"of no region":       func(s lane) { s.lend(0, 1000, 0, 2) },
		"of region 255":      func(s lane) { s.lend(0, 1000, 0, 255) },
		"beyond the region":  func(s lane) { s.lend(0, 1000, 1<<16-999, 1) },
		"far beyond it":      func(s lane) { s.lend(0, 1000, 1<<63, 1) },
		"without a byte":     func(s lane) { s.lend(10, 10, 0, 1) },
		"ends before":        func(s lane) { s.lend(10, 9, 0, 1) },
		"more than there is": func(s lane) { store(s.page, pageLent, 65) },
	} {
		t.Run(name, func(t *testing.T) {
			lanes, sessions := openLanes(t, socket)
			file, memory := buffer(t, 1<<16, bufferSeals)
			clear(memory)
			if a := sessions[0].lend(lanes[0].answer.id, file); a.errno != 0 {
				t.Fatalf("%+v", a)
			}
			lie(lanes[0])
			store(lanes[0].page, ownHead, 1000)
			lanes[0].ring()
			lanes[0].ended()
			lanes[1].ended()
		})
	}
}
