package pipe_test

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/host/nstest"
)

// tcpPair is a TCP connection in a namespace, at the same addresses in each.
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

// Two sockets go over when they are the ends of one connection, whoever says so,
// and no others.
func TestAttachOnlyEnds(t *testing.T) {
	t.Parallel()
	needBPF(t)
	b, socket := serve(t, nil)
	one, two := nstest.New(t), nstest.New(t)
	c1, s1 := tcpPair(t, one)
	c2, s2 := tcpPair(t, two)
	a, thief := greeted(t, socket), greeted(t, socket)

	// An end of the same names elsewhere is not the other end.
	mine, its := a.attach(c1), thief.attach(s2)
	if mine.errno != 0 || its.errno != 0 || len(mine.files) != 1 || len(its.files) != 1 {
		t.Fatalf("%+v, %+v", mine, its)
	}
	for name, got := range map[string]answer{
		"alone":            a.ask(message{op: opAttached, id: mine.id}),
		"another's":        thief.ask(message{op: opAttached, id: its.id}),
		"another's number": thief.ask(message{op: opAttached, id: mine.id}),
		"twice":            thief.attach(c1),
		"no TCP":           thief.attach(os.Stderr),
		"no file":          thief.ask(message{op: opAttach}),
	} {
		if got.errno == 0 || len(got.files) > 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if s := b.Status(); len(s.Connections) != 0 {
		t.Fatalf("%+v", s.Connections)
	}

	// The other ends come.
	other, last := greeted(t, socket), greeted(t, socket)
	theirs, lasts := other.attach(s1), last.attach(c2)
	for _, end := range []struct {
		c  client
		id uint32
	}{{a, mine.id}, {other, theirs.id}, {thief, its.id}, {last, lasts.id}} {
		comes(t, "an end's memory", func() bool {
			got := end.c.ask(message{op: opAttached, id: end.id})
			return got.errno == 0 && len(got.files) == 2 && got.engine == 2
		})
	}
	if s := b.Status(); len(s.Connections) != 2 || s.Connections[0].Name != "127.0.0.1:7000" {
		t.Errorf("%+v", s.Connections)
	}
	// Who has the socket of one has both go back to TCP; once.
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
	// One closes: both are without the pipe again.
	a.must(message{op: opClose, id: mine.id})
	if got := other.ask(message{op: opClose, id: theirs.id}); got.errno != unix.EBADF {
		t.Errorf("%+v", got)
	}
	if s := b.Status(); len(s.Connections) != 0 || s.MemoryBytes != 0 {
		t.Errorf("%+v", s)
	}
	// The rules change: TCP takes over.
	a.attach(c1)
	other.attach(s1)
	comes(t, "a connection", func() bool { return len(b.Status().Connections) == 1 })
	b.Recheck()
	comes(t, "the end of all connections", func() bool { return len(b.Status().Connections) == 0 })
}

// comes waits for something.
func comes(t *testing.T, what string, now func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !now(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s does not come", what)
		}
	}
}
