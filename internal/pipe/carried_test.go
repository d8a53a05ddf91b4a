package pipe_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe"
)

// Further offsets in an end's page: libsconpipe/src/page.h.
const (
	ownHead       = 0
	ownSwitchAt   = 8
	ownGeneration = 16
	ownReadWait   = 256
	peerTail      = 384 + 128
)

// mappedEnd is an end of the engine copier whose memory the test maps.
type mappedEnd struct {
	t                *testing.T
	answer           answer
	page, send, recv []byte
}

// openEnds creates a connection and maps both ends; the client's is the first.
func openEnds(t *testing.T, socket string) (ends [2]mappedEnd, sessions [2]client) {
	t.Helper()
	sessions = [2]client{greeted(t, socket), greeted(t, socket)}
	first, second := connect(sessions[0], sessions[1], pipe.Copier)
	for i, a := range []answer{first, second} {
		l := mappedEnd{t: t, answer: a}
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
		ends[i] = l
	}
	return ends, sessions
}

// ring signals the broker's doorbell, unless the broker has looked by itself and ended the
// connection.
func (l mappedEnd) ring() {
	l.t.Helper()
	if _, err := unix.Write(l.answer.files[0], []byte{0}); err != nil && !errors.Is(err, unix.EPIPE) {
		l.t.Fatal(err)
	}
}

// ended waits for EOF of the doorbell.
func (l mappedEnd) ended() {
	l.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		p := []unix.PollFd{{Fd: int32(l.answer.files[0]), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, 1000); err == nil && p[0].Revents&unix.POLLHUP != 0 {
			return
		}
		if time.Now().After(end) {
			l.t.Fatal("the connection is still open")
		}
	}
}

// await waits until a word of the page has a value.
func (l mappedEnd) await(at int, want uint64) {
	l.t.Helper()
	for end := time.Now().Add(20 * time.Second); load(l.page, at) != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			l.t.Fatalf("word %d is %d, want %d", at, load(l.page, at), want)
		}
	}
}

// over reports whether the status of the newest connection is over.
func over(b *pipe.Broker) bool {
	all := b.Status().Connections
	return all[len(all)-1].Over
}

// Impossible values in a page reset the connection, and no other one.
func TestCopierInvalidPage(t *testing.T) {
	t.Parallel()
	b, socket := serve(t, nil)
	good, _ := openEnds(t, socket)
	for name, write := range map[string]func(sender, receiver mappedEnd){
		"head beyond the ring's size": func(s, _ mappedEnd) { store(s.page, ownHead, 1000+ringAtStart+1) },
		"largest head":                func(s, _ mappedEnd) { store(s.page, ownHead, ^uint64(0)) },
		"head behind sent bytes":      func(s, _ mappedEnd) { store(s.page, ownHead, 999) },
		"unknown generation":          func(s, _ mappedEnd) { store(s.page, ownSwitchAt, 1000); s.page[ownGeneration] = 1 },
		"switch beyond the head":      func(s, _ mappedEnd) { store(s.page, ownSwitchAt, 1<<40); s.page[ownGeneration] = 1 },
		"switch behind sent bytes":    func(s, _ mappedEnd) { store(s.page, ownSwitchAt, 1); s.page[ownGeneration] = 1 },
		"tail beyond the head":        func(s, r mappedEnd) { store(r.page, ownTail, 1001); store(s.page, ownHead, 2000) },
		"huge tail":                   func(s, r mappedEnd) { store(r.page, ownTail, 1<<63); store(s.page, ownHead, 2000) },
	} {
		t.Run(name, func(t *testing.T) {
			ends, _ := openEnds(t, socket)
			store(ends[0].page, ownHead, 1000)
			ends[0].ring()
			ends[1].await(peerHead, 1000)
			write(ends[0], ends[1])
			ends[0].ring()
			ends[0].ended()
			ends[1].ended()
			for end := time.Now().Add(20 * time.Second); !over(b); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the status is not over")
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
		t.Error("wrong bytes")
	}
	if n := b.Status().Engines; len(n) < 2 {
		t.Error(n)
	}
}

// A process that punches holes into its rings affects only itself: its peer reads zeros. It
// cannot truncate them.
func TestCopierHoles(t *testing.T) {
	t.Parallel()
	_, socket := serve(t, nil)
	ends, _ := openEnds(t, socket)
	for _, fd := range ends[0].answer.files[1:] {
		if err := unix.Ftruncate(fd, 0); err == nil {
			t.Error("a file was truncated")
		}
	}
	ends[0].send[10] = 42
	if err := unix.Fallocate(ends[0].answer.files[2], unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096); err != nil {
		t.Fatal(err)
	}
	store(ends[0].page, ownHead, 1000)
	ends[0].ring()
	ends[1].await(peerHead, 1000)
	if ends[1].recv[10] != 0 {
		t.Error("the hole is not zero")
	}
}

// A slow receiver gets all bytes of a sender that has closed.
func TestCopierDrains(t *testing.T) {
	t.Parallel()
	_, socket := serve(t, nil)
	ends, sessions := openEnds(t, socket)
	sender, receiver := ends[0], ends[1]
	var sent, read uint64
	fill := func() {
		for ; sent < load(sender.page, peerTail)+ringAtStart; sent++ {
			sender.send[sent%ringAtStart] = byte(sent * 7 >> 3)
		}
		store(sender.page, ownHead, sent)
		sender.ring()
	}
	fill()
	sender.await(peerTail, ringAtStart) // the receiver's ring is full
	fill()
	store(sender.page, ownGeneration, 1<<32) // Fin is the upper half
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
		t.Error("EOF without FIN")
	}
}
