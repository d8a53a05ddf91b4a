package pipe_test

import (
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/test/bed/nstest"
)

// repaired is a TCP socket that says to be connected, though it has sent no packet.
func repaired(t *testing.T, ns string, local, peer *unix.SockaddrInet4, sent, received int) (f *os.File) {
	t.Helper()
	if err := netns.Do(ns, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		f = os.NewFile(uintptr(fd), "forged")
		for _, o := range [][2]int{
			{unix.TCP_REPAIR, 1}, {unix.TCP_REPAIR_QUEUE, 2}, {unix.TCP_QUEUE_SEQ, sent}, {unix.TCP_REPAIR_QUEUE, 1}, {unix.TCP_QUEUE_SEQ, received},
		} {
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, o[0], o[1]); err != nil {
				return err
			}
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return err
		}
		if err := unix.Bind(fd, local); err != nil {
			return err
		}
		if err := unix.Connect(fd, peer); err != nil {
			return err
		}
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 0)
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// Two sockets that look like the ends of one connection get no ring: no token arrives.
func TestForgedConnection(t *testing.T) {
	t.Parallel()
	needBPF(t)
	b, socket := serve(t, nil)
	one, two := nstest.New(t), nstest.New(t) // which nothing joins
	here, there := &unix.SockaddrInet4{Addr: [4]byte{10, 1, 0, 1}, Port: 7000}, &unix.SockaddrInet4{Addr: [4]byte{10, 1, 0, 2}, Port: 7001}
	nstest.Run(t, one, "ip addr add 10.1.0.1/32 dev lo\nip route add 10.1.0.2 dev lo")
	nstest.Run(t, two, "ip addr add 10.1.0.2/32 dev lo\nip route add 10.1.0.1 dev lo")
	client := repaired(t, one, here, there, 1000, 5000)
	server := repaired(t, two, there, here, 5000, 1001)
	a, other := greetedIn(t, one, socket), greetedIn(t, two, socket)
	mine, theirs := a.attach(client), other.attach(server)
	if mine.errno != 0 || theirs.errno != 0 {
		t.Fatalf("%+v, %+v", mine, theirs)
	}
	if s := b.Status(); len(s.Connections) != 0 {
		t.Errorf("%+v", s.Connections)
	}
	written := make(map[*os.File]bool)
	eventually(t, "a refusal", func() bool {
		for _, x := range []*crossing{{client: a, id: mine.id, socket: client}, {client: other, id: theirs.id, socket: server}} {
			x.answer = x.ask(message{op: opAttached, id: x.id})
			x.announce()
			if x.answer.errno == 0 && !written[x.socket] {
				_, _ = x.socket.Write(x.answer.secret[:])
				written[x.socket] = true
			}
			if got := x.arrived(); got.errno == 0 {
				t.Errorf("a token arrived: %+v", got)
			}
			if got := x.ask(message{op: opProven, id: x.id}); got.errno == 0 {
				t.Fatalf("%+v", got)
			}
		}
		return b.Status().Refused["network"] > 0
	})
	if s := b.Status(); s.Made != 0 {
		t.Errorf("%d connections", s.Made)
	}
}

// crossings are the two ends of a proof that has begun, on TCP connections of a
// namespace of their own.
func crossings(t *testing.T, socket string) (both [2]*crossing) {
	t.Helper()
	ns := nstest.New(t)
	client, server := tcpPair(t, ns)
	a, b := greetedIn(t, ns, socket), greetedIn(t, ns, socket)
	mine, theirs := a.attach(client), b.attach(server)
	return [2]*crossing{a.cross(mine.id, client), b.cross(theirs.id, server)}
}

// Before the proof, the broker tells an end four bits of its other end, and nothing else: what
// that end has sent, or where its token is, is not among them.
func TestNoticeTellsBits(t *testing.T) {
	t.Parallel()
	needBPF(t)
	_, socket := serve(t, nil)
	both := crossings(t, socket)
	if _, err := both[0].socket.Write(make([]byte, 12345)); err != nil {
		t.Fatal(err)
	}
	if got := both[0].announce(); got.errno != 0 || got.size != 0 {
		t.Fatalf("%+v", got)
	}
	notice, err := unix.Mmap(both[1].answer.files[0], 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(notice) }()
	for i, b := range notice {
		isBit, isNonce := i < noticeNonce && i%4 == 0, i >= noticeNonce && i < noticeNonce+tokenBytes-markBytes
		if !isNonce && (b > 1 || b == 1 && !isBit) {
			t.Errorf("byte %d of the notice is %d", i, b)
		}
	}
	for range 3 {
		if got := both[1].ask(message{op: opProven, id: both[1].id}); got.size != 0 || got.number != 0 || got.errno != unix.EAGAIN {
			t.Errorf("%+v", got)
		}
	}
}

// acceptedPair returns the ends of a connection to a listener.
func acceptedPair(t *testing.T, l net.Listener) (client, server *os.File) {
	t.Helper()
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for conn, to := range map[net.Conn]**os.File{c: &client, s: &server} {
		if *to, err = conn.(*net.TCPConn).File(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { (*to).Close() })
	}
	return client, server
}

// An end does not learn whether its other end has come, gone, or attached the same end, before
// their proof is among those under way.
func TestWaitingEndLearnsNothing(t *testing.T) {
	t.Parallel()
	needBPF(t)
	b, socket := serve(t, nil)
	ns := nstest.New(t)
	a, other := greetedIn(t, ns, socket), greetedIn(t, ns, socket)
	free := b.FillCrossings()
	client, server := tcpPair(t, ns)
	mine, theirs := a.attach(client), other.attach(server)
	if mine.errno != 0 || theirs.errno != 0 {
		t.Fatalf("%+v, %+v", mine, theirs)
	}
	silent := func(what string) {
		t.Helper()
		if got := a.attach(client); got.errno != unix.EBUSY {
			t.Errorf("attached twice %s: %+v", what, got)
		}
		if got := a.ask(message{op: opAttached, id: mine.id}); got.errno != unix.EAGAIN {
			t.Errorf("%s: %+v", what, got)
		}
		p := []unix.PollFd{{Fd: int32(mine.files[0]), Events: unix.POLLIN}}
		if n, err := unix.Poll(p, 10); n != 0 || err != nil {
			t.Errorf("news %s: %+v, %v", what, p, err)
		}
	}
	silent("after the other end has come")
	other.must(message{op: opClose, id: theirs.id})
	silent("after it has gone")
	theirs = other.attach(server)
	silent("after it has come again")
	free()
	x := [2]*crossing{a.cross(mine.id, client), other.cross(theirs.id, server)}
	prove(t, x)
}

// Answers that no name listens on a port are few in the time of a proof.
func TestAbsencesAreFew(t *testing.T) {
	t.Parallel()
	_, socket := serve(t, nil)
	c := greeted(t, socket)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	connect := message{op: opConnect, engines: 1 << pipe.Unix, name: l.Addr().(*net.TCPAddr).AddrPort()}
	told := 0
	for begun := time.Now(); time.Since(begun) < time.Second; told++ {
		if got := c.ask(connect); got.errno != unix.ECONNREFUSED {
			t.Fatalf("%+v", got)
		}
	}
	t.Logf("bound: %d answers that no name listens within a second", told)
	if told > 64 {
		t.Errorf("%d answers", told)
	}
}

// What an end says of its token is checked.
func TestTokenLies(t *testing.T) {
	t.Parallel()
	needBPF(t)
	b, socket := serve(t, nil)
	both, others := crossings(t, socket), crossings(t, socket)
	x, y := both[0], both[1]
	for what, it := range map[string]struct {
		got  answer
		want unix.Errno
	}{
		"by a socket of another namespace":    {x.with(opArrived, 0, others[0].socket), unix.EXDEV},
		"by another socket":                   {x.with(opArrived, 0, y.socket), unix.EBADF},
		"by another's number":                 {(&crossing{client: x.client, id: others[0].id, socket: x.socket}).announce(), unix.EBADF},
		"an arrival out of reach":             {y.with(opArrived, 1<<30, y.socket), unix.EINVAL},
		"an arrival when nothing has":         {y.arrived(), unix.EAGAIN},
		"an arrival without a socket":         {x.ask(message{op: opArrived, id: x.id}), unix.EBADF},
		"rings before the tokens are through": {x.ask(message{op: opProven, id: x.id}), unix.EAGAIN},
	} {
		if it.got.errno != it.want || len(it.got.files) > 0 {
			t.Errorf("%s: %+v, want %v", what, it.got, it.want)
		}
	}
	if got := x.announce(); got.errno != 0 {
		t.Fatalf("%+v", got)
	}
	if got := x.announce(); got.errno != unix.EALREADY {
		t.Errorf("twice: %+v", got)
	}
	if _, err := x.socket.Write(others[0].answer.secret[:]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the proof with another's token", func() bool { return y.arrived().errno == unix.EPROTO })
	for _, e := range both {
		if got := e.ask(message{op: opProven, id: e.id}); got.errno == 0 || got.errno == unix.EAGAIN {
			t.Errorf("%+v", got)
		}
	}
	prove(t, others)
	eventually(t, "the others' connection", func() bool { return b.Status().Made == 1 })
}

// A token that was chosen before a change of rules proves nothing after it.
func TestOldToken(t *testing.T) {
	t.Parallel()
	needBPF(t)
	b, socket := serve(t, nil)
	both := crossings(t, socket)
	b.Recheck()
	eventually(t, "the end of the proof", func() bool { return both[0].announce().errno == unix.ESTALE })
	for _, x := range both {
		x.must(message{op: opClose, id: x.id})
	}
	next := again(both)
	if got := next[0].announce(); got.errno != 0 {
		t.Fatalf("%+v", got)
	}
	if _, err := next[0].socket.Write(both[0].answer.secret[:]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the proof with the old token", func() bool { return next[1].arrived().errno == unix.EPROTO })
	if s := b.Status(); s.Made != 0 {
		t.Errorf("%d connections", s.Made)
	}
}

// An end asks for its token after the proof is over, before it gets its rings.
func TestTokenAfterProof(t *testing.T) {
	t.Parallel()
	needBPF(t)
	b, socket := serve(t, nil)
	both := crossings(t, socket)
	prove(t, both)
	eventually(t, "a connection", func() bool { return b.Status().Made == 1 })
	for _, x := range both {
		if got := x.ask(message{op: opAttached, id: x.id}); got.errno != unix.ESTALE || len(got.files) > 0 {
			t.Errorf("%+v", got)
		}
	}
}

// A connection moves by nine requests. The second end that looks for a token says by that that it
// sends its own, if its socket has room, and the broker keeps no file that an end gets.
func TestNineRequests(t *testing.T) {
	t.Parallel()
	needBPF(t)
	b, socket := serve(t, nil)
	for _, room := range []uint32{1, 0} {
		ns := nstest.New(t)
		client, server := tcpPair(t, ns)
		both := [2]*crossing{{client: greetedIn(t, ns, socket), socket: client}, {client: greetedIn(t, ns, socket), socket: server}}
		before := b.Files()
		for _, x := range both {
			x.id = x.attach(x.socket).id
		}
		for i, x := range both {
			eventually(t, "the other end", func() bool {
				x.answer = x.ask(message{op: opAttached, id: x.id, arg: room})
				return x.answer.errno == 0
			})
			if sends := x.answer.size == 1; sends != (i == 1 && room == 1) {
				t.Errorf("end %d with room %d sends its token: %t", i, room, sends)
			}
		}
		if got := both[1].announce(); room == 1 && got.errno != unix.EALREADY || room == 0 && got.errno != 0 {
			t.Errorf("room %d: %+v", room, got)
		}
		if got := both[0].announce(); got.errno != 0 {
			t.Errorf("%+v", got)
		}
		for i, x := range both {
			if _, err := x.socket.Write(x.answer.secret[:]); err != nil {
				t.Fatal(err)
			}
			eventually(t, "a token", func() bool { return both[1-i].arrived().errno == 0 })
		}
		for _, x := range both {
			eventually(t, "the rings", func() bool {
				got := x.ask(message{op: opProven, id: x.id})
				return got.errno == 0 && len(got.files) == 4
			})
		}
		const doorbells = 2
		eventually(t, "the broker has only the doorbells", func() bool { return b.Files() == before+doorbells })
		for _, x := range both {
			x.conn.Close()
		}
		eventually(t, "all files are closed", func() bool { return b.Files() == 0 })
	}
}

// A proof that has succeeded leaves its place to another one while its connection is made.
func TestProvenLeavesPlace(t *testing.T) {
	t.Parallel()
	needBPF(t)
	const proofs = 40 // more than a container has places
	b, socket := serve(t, nil)
	ns := nstest.New(t)
	var l net.Listener
	if err := netns.Do(ns, func() (err error) {
		l, err = net.Listen("tcp4", "127.0.0.1:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	first, second := greetedIn(t, ns, socket), greetedIn(t, ns, socket)
	free := b.FillMakings()
	for range proofs {
		var client, server *os.File
		if err := netns.Do(ns, func() error {
			client, server = acceptedPair(t, l)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		mine, theirs := first.attach(client), second.attach(server)
		prove(t, [2]*crossing{first.cross(mine.id, client), second.cross(theirs.id, server)})
	}
	if s := b.Status(); s.Made != 0 {
		t.Errorf("%d connections", s.Made)
	}
	free()
	eventually(t, "all connections", func() bool { return b.Status().Made == proofs })
}

// again has both ends attach again, after the proof that they had is over.
func again(both [2]*crossing) (next [2]*crossing) {
	for i, x := range both {
		next[i] = &crossing{client: x.client, socket: x.socket, id: x.attach(x.socket).id}
	}
	for i, x := range next {
		next[i] = x.cross(x.id, x.socket)
	}
	return next
}

// Only the token of this proof, whole and in one piece of the stream, proves anything.
func TestTokenBytes(t *testing.T) {
	t.Parallel()
	needBPF(t)
	b, socket := serve(t, nil)
	both := crossings(t, socket)
	prove(t, both)
	eventually(t, "a connection", func() bool { return b.Status().Made == 1 })
	used := both[0].answer.secret
	b.Recheck()
	eventually(t, "its end", func() bool { return len(b.Status().Connections) == 0 })

	for what, wrong := range map[string]func(own, theirs []byte) []byte{
		"a token that has proved a connection": func(_, _ []byte) []byte { return used[:] },
		"another byte in it":                   func(own, _ []byte) []byte { return slices.Concat(own[:20], []byte{0}, own[20:tokenBytes-1]) },
		"its mark, and a nonce of before":      func(own, _ []byte) []byte { return slices.Concat(own[:16], used[16:]) },
		"the other end's":                      func(_, theirs []byte) []byte { return theirs },
	} {
		x := crossings(t, socket)
		if got := x[0].announce(); got.errno != 0 {
			t.Fatalf("%+v", got)
		}
		if _, err := x[0].socket.Write(wrong(x[0].answer.secret[:], x[1].answer.secret[:])); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the end of the proof", func() bool { return x[1].arrived().errno != unix.EAGAIN })
		for _, e := range x {
			if got := e.ask(message{op: opProven, id: e.id}); got.errno != unix.EPROTO {
				t.Errorf("%s: %+v", what, got)
			}
		}
	}

	next := again(both)
	own := next[0].answer.secret
	// It may come in pieces.
	if got := next[0].announce(); got.errno != 0 {
		t.Fatalf("%+v", got)
	}
	for _, piece := range [][]byte{own[:5], own[5:16], own[16 : tokenBytes-1]} {
		if _, err := next[0].socket.Write(piece); err != nil {
			t.Fatal(err)
		}
		if got := next[1].arrived(); got.errno != unix.EAGAIN {
			t.Errorf("a part of a token: %+v", got)
		}
	}
	if _, err := next[0].socket.Write(own[tokenBytes-1:]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the token", func() bool { return next[1].arrived().errno == 0 })
	if s := b.Status(); s.Made != 1 {
		t.Errorf("%d connections", s.Made)
	}
}
