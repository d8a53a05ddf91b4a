package pipe_test

import (
	"bytes"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/test/bed/nstest"
)

// attachBed has two sessions in a namespace, whose attached connections receive from pools.
type attachBed struct {
	t      *testing.T
	broker *pipe.Broker
	socket string
	ns     string
	l      net.Listener
	a, b   client
}

func newAttachBed(t *testing.T) *attachBed {
	t.Helper()
	broker, socket := serve(t, nil)
	broker.PoolAlways()
	x := &attachBed{t: t, broker: broker, socket: socket, ns: nstest.New(t)}
	if err := netns.Do(x.ns, func() (err error) {
		x.l, err = net.Listen("tcp4", "127.0.0.1:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.l.Close() })
	x.a, x.b = greetedIn(t, x.ns, socket), greetedIn(t, x.ns, socket)
	return x
}

// proven has the tokens of a connection cross.
func (x *attachBed) proven(a, b client) (both [2]*crossing, ids [2]uint32) {
	x.t.Helper()
	var sockets [2]*os.File
	if err := netns.Do(x.ns, func() error {
		sockets[0], sockets[1] = acceptedPair(x.t, x.l)
		return nil
	}); err != nil {
		x.t.Fatal(err)
	}
	for i, c := range []client{a, b} {
		got := c.sendWith(message{op: opAttach, arg: 1}.packet(), unix.UnixRights(int(sockets[i].Fd())))
		if got.errno != 0 {
			x.t.Fatalf("%+v", got)
		}
		ids[i] = got.id
	}
	for i, c := range []client{a, b} {
		both[i] = c.cross(ids[i], sockets[i])
	}
	prove(x.t, both)
	return both, ids
}

// fetch returns a proven end.
func (x *attachBed) fetch(c *crossing, id uint32) (end answer) {
	x.t.Helper()
	eventually(x.t, "the rings", func() bool {
		end = c.ask(message{op: opProven, id: id})
		return end.errno == 0
	})
	if end.id = id; end.number&inPool == 0 || len(end.files) != 3 {
		x.t.Fatalf("no ring of the pool: %+v", end)
	}
	return end
}

// attach returns the ends of a connection, and the page of the second one.
func (x *attachBed) attach(a, b client) (ends [2]answer, page []byte) {
	x.t.Helper()
	both, ids := x.proven(a, b)
	for i := range both {
		ends[i] = x.fetch(both[i], ids[i])
	}
	return ends, pageOf(x.t, ends[1])
}

// rings maps a session's first rings.
func (x *attachBed) rings(c client) []byte {
	x.t.Helper()
	got := c.ask(message{op: opChunk})
	if got.errno != 0 || len(got.files) != 1 {
		x.t.Fatalf("%+v", got)
	}
	m, err := unix.Mmap(got.files[0], 0, 64*ringAtStart, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { _ = unix.Munmap(m) })
	return m
}

func (x *attachBed) send(end answer, c byte) {
	x.t.Helper()
	src := memory(x.t, 4096)
	for i := range src {
		src[i] = c
	}
	if err := submit(end.files[0], kindSend, addr(src), 4096, 32); err != nil {
		x.t.Fatal(err)
	}
}

// unread has bytes in a ring of the second session's pool when one of the ends is closed, which
// close does, and fails if another connection gets the ring. It returns the receiving end's page.
func (x *attachBed) unread(close func(ends [2]answer)) (page []byte) {
	x.t.Helper()
	first, page := x.attach(x.a, x.b)
	rings := x.rings(x.b)
	x.send(first[0], 'a')
	at := int(*word(page, peerGeneration)%(1<<14)) * ringAtStart
	close(first)
	for range 20 {
		other, otherPage := x.attach(x.a, x.b)
		x.send(other[0], 'b')
		store(otherPage, ownTail, load(otherPage, peerHead))
		x.a.must(message{op: opClose, id: other[0].id})
	}
	if want := bytes.Repeat([]byte{'a'}, 4096); !bytes.Equal(rings[at:at+4096], want) {
		x.t.Fatalf("another connection has got the ring: %q", rings[at:at+10])
	}
	return page
}

// After its peer has closed the connection, a process reads the rest from the ring of its pool when
// it likes: no other connection gets the ring before, and it stays charged.
func TestPooledRingIsKept(t *testing.T) {
	t.Parallel()
	needBPF(t)
	x := newAttachBed(t)
	page := x.unread(func(ends [2]answer) { x.a.must(message{op: opClose, id: ends[0].id}) })
	x.a.conn.Close()
	// The process's pool has a chunk and its lists, and one end.
	const pool = 64*ringAtStart + lists*listBytes
	eventually(t, "one end's charge", func() bool { return x.broker.Status().MemoryBytes == pool+ringAtStart })
	store(page, ownTail, load(page, peerHead))
	eventually(t, "its end", func() bool { return x.broker.Status().MemoryBytes == pool })
}

// A process that has closed its end may read on from its ring (stream_leave of libsconpipe/run).
func TestPooledRingOfClosedEnd(t *testing.T) {
	t.Parallel()
	needBPF(t)
	x := newAttachBed(t)
	x.unread(func(ends [2]answer) { x.b.must(message{op: opClose, id: ends[1].id}) })
}

// A peer that sends before a process has got its end, and closes, does not have it charged.
func TestPooledRingThatNobodyGets(t *testing.T) {
	t.Parallel()
	needBPF(t)
	x := newAttachBed(t)
	both, ids := x.proven(x.a, x.b)
	end := x.fetch(both[0], ids[0])
	x.send(end, 'a')
	x.a.must(message{op: opClose, id: ids[0]})
	x.b.ask(message{op: opClose, id: ids[1]})
	x.a.conn.Close()
	const pool = 64*ringAtStart + lists*listBytes
	eventually(t, "the end of the end's charge", func() bool { return x.broker.Status().MemoryBytes == pool })
}

// A process that never reads is charged until it ends.
func TestPooledRingEndsWithProcess(t *testing.T) {
	t.Parallel()
	needBPF(t)
	x := newAttachBed(t)
	first, _ := x.attach(x.a, x.b)
	x.send(first[0], 'a')
	x.a.must(message{op: opClose, id: first[0].id})
	x.a.conn.Close()
	x.b.conn.Close()
	eventually(t, "the end of all charges", func() bool { return x.broker.Status().MemoryBytes == 0 && x.broker.Files() == 0 })
}

// A process has its attached connections leave the pool, and nobody else's.
func TestLeaveRings(t *testing.T) {
	t.Parallel()
	needBPF(t)
	x := newAttachBed(t)
	c, d := greetedIn(t, x.ns, x.socket), greetedIn(t, x.ns, x.socket)
	own, _ := x.attach(x.a, x.b)
	others, _ := x.attach(c, d)
	x.send(own[0], 'a')
	x.b.must(message{op: opLeaveRings})
	for i, end := range own {
		if err := submit(end.files[0], kindSend, addr(memory(t, 4096)), 4096, 32); err == nil {
			t.Errorf("end %d still sends by a ring", i)
		}
	}
	x.send(others[0], 'b')
	if s := x.broker.Status(); len(s.Connections) != 1 {
		t.Errorf("%d connections, want 1", len(s.Connections))
	}
}

// A process with attached connections gets further rings when it asks for them, and not when its peers
// do: it has all that is sent to it, should the broker end.
func TestAttachedPoolIsExtended(t *testing.T) {
	t.Parallel()
	needBPF(t)
	x := newAttachBed(t)
	first, page := x.attach(x.a, x.b)
	if got := x.b.ask(message{op: opChunk, arg: 1}); got.errno != unix.EINVAL {
		t.Errorf("more rings than connections: %+v", got)
	}
	const more = 70
	ends, pages := [][2]answer{first}, [][]byte{page}
	for range more {
		end, page := x.attach(x.a, x.b)
		ends, pages = append(ends, end), append(pages, page)
	}
	var unread int
	for _, end := range ends {
		if err := submit(end[0].files[0], kindSend, addr(memory(t, 4096)), 4096, 32); err == nil {
			unread++
		} else if err != unix.ENOBUFS {
			t.Fatal(err)
		}
	}
	if unread != 64 {
		t.Errorf("%d connections have unread bytes in 64 rings", unread)
	}
	last := ends[more]
	if got := x.a.ask(message{op: opMoreRings, id: last[0].id}); got.errno != unix.EINVAL {
		t.Errorf("the peer enlarges the pool: %+v", got)
	}
	if got := x.b.ask(message{op: opChunk, arg: 2}); got.errno != unix.EINVAL {
		t.Errorf("another chunk than the next: %+v", got)
	}
	if got := x.b.ask(message{op: opChunk, arg: 1}); got.errno != 0 || len(got.files) != 1 {
		t.Fatalf("%+v", got)
	}
	eventually(t, "rings of the second chunk", func() bool {
		return submit(last[0].files[0], kindSend, addr(memory(t, 4096)), 4096, 32) == nil
	})
	if got := *word(pages[more], peerGeneration) % (1 << 14); got < 64 {
		t.Errorf("ring %d", got)
	}
}
