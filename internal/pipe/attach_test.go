package pipe_test

import (
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/nstest"
)

// tcpPair creates a TCP connection in a namespace, with the same addresses in each.
func tcpPair(t *testing.T, ns string) (client, server *os.File) {
	t.Helper()
	err := netns.Do(ns, func() error {
		l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:7000")))
		if err != nil {
			return err
		}
		defer l.Close()
		from := net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:7001"))
		c, err := net.DialTCP("tcp4", from, l.Addr().(*net.TCPAddr))
		if err != nil {
			return err
		}
		defer c.Close()
		s, err := l.AcceptTCP()
		if err != nil {
			return err
		}
		defer s.Close()
		if client, err = c.File(); err != nil {
			return err
		}
		server, err = s.File()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func (c client) attach(f *os.File) answer {
	c.t.Helper()
	return c.sendWith(message{op: opAttach}.packet(), unix.UnixRights(int(f.Fd())))
}

// crossing is one end of a proof.
type crossing struct {
	client
	id     uint32
	socket *os.File
	answer answer // of opAttached
}

func (c client) cross(id uint32, socket *os.File) *crossing {
	c.t.Helper()
	x := &crossing{client: c, id: id, socket: socket}
	eventually(c.t, "the other end", func() bool {
		x.answer = c.ask(message{op: opAttached, id: id})
		return x.answer.errno == 0
	})
	return x
}

// announce says that the token will be sent; arrived, that the other one is there.
func (x *crossing) announce() answer { return x.ask(message{op: opToken, id: x.id}) }
func (x *crossing) arrived() answer  { return x.with(opArrived, 0, x.socket) }

func (x *crossing) with(op uint32, size uint64, socket *os.File) answer {
	x.t.Helper()
	return x.sendWith(message{op: op, id: x.id, size: size}.packet(), unix.UnixRights(int(socket.Fd())))
}

// prove has the tokens of both ends cross.
func prove(t testing.TB, both [2]*crossing) {
	t.Helper()
	for _, x := range both {
		if a := x.announce(); a.errno != 0 {
			t.Fatalf("%+v", a)
		}
		if _, err := x.socket.Write(x.answer.secret[:]); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range both {
		eventually(t, "a token", func() bool { return x.arrived().errno == 0 })
		if _, err := io.ReadFull(x.socket, make([]byte, tokenBytes)); err != nil {
			t.Fatal(err)
		}
	}
}

// The broker joins two sockets if and only if they are the two ends of one connection,
// whichever processes attach them.
func TestAttachOnlyEnds(t *testing.T) {
	t.Parallel()
	needBPF(t)
	b, socket := serve(t, nil)
	one, two := nstest.New(t), nstest.New(t)
	c1, s1 := tcpPair(t, one)
	c2, s2 := tcpPair(t, two)
	a, intruder := greetedIn(t, one, socket), greetedIn(t, two, socket)

	// A socket with the same addresses in another namespace is not the other end.
	mine, its := a.attach(c1), intruder.attach(s2)
	if mine.errno != 0 || its.errno != 0 || len(mine.files) != 1 || len(its.files) != 1 {
		t.Fatalf("%+v, %+v", mine, its)
	}
	for name, got := range map[string]answer{
		"alone":            a.ask(message{op: opAttached, id: mine.id}),
		"another's":        intruder.ask(message{op: opAttached, id: its.id}),
		"another's number": intruder.ask(message{op: opAttached, id: mine.id}),
		"twice":            a.attach(c1),
		"of elsewhere":     intruder.attach(c1),
		"no TCP":           intruder.attach(os.Stderr),
		"no file":          intruder.ask(message{op: opAttach}),
	} {
		if got.errno == 0 || len(got.files) > 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if s := b.Status(); len(s.Connections) != 0 {
		t.Fatalf("%+v", s.Connections)
	}

	// The other ends come, and prove that the network lets them.
	other, last := greetedIn(t, one, socket), greetedIn(t, two, socket)
	theirs, lasts := other.attach(s1), last.attach(c2)
	first := [2]*crossing{a.cross(mine.id, c1), other.cross(theirs.id, s1)}
	second := [2]*crossing{last.cross(lasts.id, c2), intruder.cross(its.id, s2)}
	for _, both := range [][2]*crossing{first, second} {
		for _, x := range both {
			if got := x.ask(message{op: opProven, id: x.id}); got.errno != unix.EAGAIN || len(got.files) > 0 {
				t.Errorf("%+v", got)
			}
		}
		prove(t, both)
		for _, x := range both {
			eventually(t, "an end's memory", func() bool {
				got := x.ask(message{op: opProven, id: x.id})
				return got.errno == 0 && len(got.files) == 4 && got.engine == 2
			})
		}
	}
	if s := b.Status(); len(s.Connections) != 2 || s.Connections[0].Name != "127.0.0.1:7000" {
		t.Errorf("%+v", s.Connections)
	}
	// A process that has one socket moves both ends back to TCP, once.
	child := greeted(t, socket)
	for _, want := range []unix.Errno{0, unix.EBADF} {
		if got := child.sendWith(message{op: opDetach}.packet(), unix.UnixRights(int(c2.Fd()))); got.errno != want {
			t.Errorf("%+v", got)
		}
	}
	if got := child.ask(message{op: opDetach}); got.errno != unix.EBADF {
		t.Errorf("%+v", got)
	}
	if s := b.Status(); len(s.Connections) != 1 {
		t.Errorf("%+v", s.Connections)
	}
	// One end closes: both are detached.
	a.must(message{op: opClose, id: mine.id})
	if got := other.ask(message{op: opClose, id: theirs.id}); got.errno != unix.EBADF {
		t.Errorf("%+v", got)
	}
	if s := b.Status(); len(s.Connections) != 0 || s.MemoryBytes != 0 {
		t.Errorf("%+v", s)
	}
	// The rules change: TCP takes over.
	mine, theirs = a.attach(c1), other.attach(s1)
	first = [2]*crossing{a.cross(mine.id, c1), other.cross(theirs.id, s1)}
	prove(t, first)
	eventually(t, "a connection", func() bool { return len(b.Status().Connections) == 1 })
	b.Recheck()
	eventually(t, "the end of all connections", func() bool { return len(b.Status().Connections) == 0 })
}

// eventually waits until a condition holds, for 20 s at most; what names it.
func eventually(t testing.TB, what string, now func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !now(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timeout: %s", what)
		}
	}
}
