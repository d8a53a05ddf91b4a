package pipe_test

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe"
)

// More places in an end's page.
const (
	ownHead       = 0
	ownSwitchAt   = 8
	ownGeneration = 16
	ownReadWait   = 256
	peerTail      = 384 + 128
)

// lane is an end of the engine copier, with its memory mapped here.
type lane struct {
	t                *testing.T
	answer           answer
	page, send, recv []byte
}

// openLanes makes a connection: the client's end is the first.
func openLanes(t *testing.T, socket string) (lanes [2]lane, sessions [2]client) {
	t.Helper()
	sessions = [2]client{greeted(t, socket), greeted(t, socket)}
	first, second := connect(sessions[0], sessions[1], pipe.Copier)
	for i, a := range []answer{first, second} {
		l := lane{t: t, answer: a}
		for j, to := range []*[]byte{&l.page, &l.send, &l.recv} {
			size := int(a.size)
			if j == 0 {
				size = os.Getpagesize()
			}
			m, err := unix.Mmap(a.files[1+j], 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Munmap(m) })
			*to = m
		}
		sessions[i].must(message{op: opMapped, id: a.id})
		lanes[i] = l
	}
	return lanes, sessions
}

// ring wakes the broker.
func (l lane) ring() {
	l.t.Helper()
	if _, err := unix.Write(l.answer.files[0], []byte{0}); err != nil {
		l.t.Fatal(err)
	}
}

// ended waits until the doorbell is at its end.
func (l lane) ended() {
	l.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		p := []unix.PollFd{{Fd: int32(l.answer.files[0]), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, 1000); err == nil && p[0].Revents&unix.POLLHUP != 0 {
			return
		}
		if time.Now().After(end) {
			l.t.Fatal("the connection goes on")
		}
	}
}

// await waits until a word of the page has a value.
func (l lane) await(at int, want uint64) {
	l.t.Helper()
	for end := time.Now().Add(20 * time.Second); load(l.page, at) != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			l.t.Fatalf("word %d is %d, want %d", at, load(l.page, at), want)
		}
	}
}

// over says whether the newest connection is told to be over.
func over(b *pipe.Broker) bool {
	all := b.Status().Connections
	return all[len(all)-1].Over
}

// What an application writes into its page that cannot be ends its connection,
// and nobody else's.
func TestCopierLies(t *testing.T) {
	t.Parallel()
	b, socket := serve(t, nil)
	good, _ := openLanes(t, socket)
	for name, lie := range map[string]func(sender, receiver lane){
		"more than the ring has":    func(s, _ lane) { store(s.page, ownHead, 1000+ringAtStart+1) },
		"the largest number":        func(s, _ lane) { store(s.page, ownHead, ^uint64(0)) },
		"less than was sent":        func(s, _ lane) { store(s.page, ownHead, 999) },
		"a ring that is not there":  func(s, _ lane) { store(s.page, ownSwitchAt, 1000); s.page[ownGeneration] = 1 },
		"a switch beyond the head":  func(s, _ lane) { store(s.page, ownSwitchAt, 1<<40); s.page[ownGeneration] = 1 },
		"a switch that is long ago": func(s, _ lane) { store(s.page, ownSwitchAt, 1); s.page[ownGeneration] = 1 },
		"read what was not sent":    func(s, r lane) { store(r.page, ownTail, 1001); store(s.page, ownHead, 2000) },
		"read very much":            func(s, r lane) { store(r.page, ownTail, 1<<63); store(s.page, ownHead, 2000) },
	} {
		t.Run(name, func(t *testing.T) {
			lanes, _ := openLanes(t, socket)
			store(lanes[0].page, ownHead, 1000)
			lanes[0].ring()
			lanes[1].await(peerHead, 1000)
			lie(lanes[0], lanes[1])
			lanes[0].ring()
			lanes[0].ended()
			lanes[1].ended()
			for end := time.Now().Add(20 * time.Second); !over(b); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("it is not told to be over")
				}
			}
		})
	}
	good[0].send[0], good[0].send[999] = 42, 43
	store(good[0].page, ownHead, 1000)
	good[0].ring()
	good[1].await(peerHead, 1000)
	good[0].await(peerTail, 1000)
	if good[1].recv[0] != 42 || good[1].recv[999] != 43 || good[1].recv[1000] != 0 || good[0].recv[0] != 0 {
		t.Error("other bytes have come")
	}
	if n := b.Status().Engines; len(n) < 2 {
		t.Error(n)
	}
}

// An application that takes the memory of its rings away ends nobody but
// itself, and its peer gets zeros at most.
func TestCopierHoles(t *testing.T) {
	t.Parallel()
	_, socket := serve(t, nil)
	lanes, _ := openLanes(t, socket)
	for _, fd := range lanes[0].answer.files[1:] {
		if err := unix.Ftruncate(fd, 0); err == nil {
			t.Error("a ring was cut")
		}
	}
	lanes[0].send[10] = 42
	if err := unix.Fallocate(lanes[0].answer.files[2], unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096); err != nil {
		t.Fatal(err)
	}
	store(lanes[0].page, ownHead, 1000)
	lanes[0].ring()
	lanes[1].await(peerHead, 1000)
	if lanes[1].recv[10] != 0 {
		t.Error("bytes came from nowhere")
	}
}

// A sender that has left is read to its end, however slowly.
func TestCopierDrains(t *testing.T) {
	t.Parallel()
	_, socket := serve(t, nil)
	lanes, sessions := openLanes(t, socket)
	sender, receiver := lanes[0], lanes[1]
	var sent, read uint64
	fill := func() {
		for ; sent < load(sender.page, peerTail)+ringAtStart; sent++ {
			sender.send[sent%ringAtStart] = byte(sent * 7 >> 3)
		}
		store(sender.page, ownHead, sent)
		sender.ring()
	}
	fill()
	sender.await(peerTail, ringAtStart) // the receiver's ring is full now
	fill()
	store(sender.page, ownGeneration, 1<<32) // the end is in its upper half
	sessions[0].must(message{op: opClose, id: sender.answer.id})
	for read < sent {
		receiver.await(peerHead, min(read+ringAtStart, sent))
		for head := load(receiver.page, peerHead); read < head; read++ {
			if receiver.recv[read%ringAtStart] != byte(read*7>>3) {
				t.Fatalf("byte %d", read)
			}
		}
		store(receiver.page, ownTail, read)
		if read < sent {
			receiver.ring()
		}
	}
	receiver.ended()
	if receiver.page[peerFin] != 1 {
		t.Error("it ended without its end")
	}
}
