package pipe_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/pipe"
)

// Operations of the protocol, as libsconpipe/src/wire.h has them.
const (
	opHello = iota + 1
	opBind
	opListen
	opAccept
	opConnect
	opMapped
	opRing
	opGrow
	opClose
	opWake
	opEnded
	opAttach
	opAttached
	opDetach
	opLend
	opTakeBack
	opToken
	opArrived
	opProven
	opChunk
	opMoreRings
	opLeaveRings
)

// client sends arbitrary packets to the broker. It runs in the test's network namespace.
type client struct {
	t    testing.TB
	conn *net.UnixConn
}

// message is a request, answer its reply. With opBind or opConnect, name is the address that
// the attached TCP socket is bound or connected to.
type message struct {
	op, id, arg, engines uint32
	name                 netip.AddrPort
	size                 uint64
}

type answer struct {
	errno  unix.Errno
	id     uint32
	size   uint64
	port   uint16
	files  []int
	ended  bool // the broker has closed the session
	engine uint32
	number uint32           // of a generation or a region
	secret [tokenBytes]byte // of opAttached, the token
}

func dial(t testing.TB, socket string) client {
	t.Helper()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return client{t, conn}
}

// greeted returns a client that has sent hello.
func greeted(t testing.TB, socket string) client {
	c := dial(t, socket)
	if a := c.ask(message{op: opHello, arg: pipe.Version}); a.errno != 0 || a.ended {
		t.Fatalf("%+v", a)
	}
	return c
}

// greetedIn is a client of a network namespace.
func greetedIn(t testing.TB, ns, socket string) (c client) {
	t.Helper()
	if err := netns.Do(ns, func() error {
		c = greeted(t, socket)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return c
}

func (m message) packet() []byte {
	b := make([]byte, 64)
	for i, v := range []uint32{m.op, m.id, m.arg, m.engines} {
		binary.NativeEndian.PutUint32(b[4*i:], v)
	}
	binary.NativeEndian.PutUint64(b[16:], m.size)
	return b
}

func (c client) ask(m message) answer {
	c.t.Helper()
	if !m.name.IsValid() {
		return c.send(m.packet())
	}
	fd, err := m.tcp()
	if err != nil {
		return answer{errno: err.(unix.Errno)}
	}
	defer unix.Close(fd)
	return c.sendWith(m.packet(), unix.UnixRights(fd))
}

// tcp creates the socket to attach to a request.
func (m message) tcp() (fd int, err error) {
	flags := unix.SOCK_STREAM | unix.SOCK_CLOEXEC
	if m.op == opBind {
		flags |= unix.SOCK_NONBLOCK
	}
	if fd, err = unix.Socket(unix.AF_INET, flags, 0); err != nil {
		return -1, err
	}
	name := &unix.SockaddrInet4{Addr: m.name.Addr().As4(), Port: int(m.name.Port())}
	if m.op == opBind {
		if err = unix.Bind(fd, name); err == nil {
			err = unix.Listen(fd, 16)
		}
	} else if err = unix.Connect(fd, name); err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (c client) send(packet []byte) answer { return c.sendWith(packet, nil) }

func (c client) sendWith(packet, rights []byte) (a answer) {
	c.t.Helper()
	if _, _, err := c.conn.WriteMsgUnix(packet, rights, nil); err != nil {
		return answer{ended: true}
	}
	buf, oob := make([]byte, 64), make([]byte, 128)
	if err := c.conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		c.t.Fatal(err)
	}
	n, oobn, _, _, err := c.conn.ReadMsgUnix(buf, oob)
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || err == nil && n == 0 {
		return answer{ended: true}
	}
	if err != nil {
		c.t.Fatal(err)
	}
	a = answer{
		errno: unix.Errno(binary.NativeEndian.Uint32(buf)), id: binary.NativeEndian.Uint32(buf[4:]),
		engine: binary.NativeEndian.Uint32(buf[8:]), number: binary.NativeEndian.Uint32(buf[12:]),
		port: binary.NativeEndian.Uint16(buf[34:]), size: binary.NativeEndian.Uint64(buf[40:]),
	}
	copy(a.secret[:markBytes], buf[16:])
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		c.t.Fatal(err)
	}
	for _, m := range messages {
		files, err := unix.ParseUnixRights(&m)
		if err != nil {
			c.t.Fatal(err)
		}
		a.files = append(a.files, files...)
	}
	c.t.Cleanup(func() {
		for _, fd := range a.files {
			unix.Close(fd)
		}
	})
	if len(packet) > 0 && packet[0] == opAttached && len(a.files) == 1 {
		if _, err := unix.Pread(a.files[0], a.secret[markBytes:], noticeNonce); err != nil {
			c.t.Fatal(err)
		}
	}
	return a
}

// must is ask, and fails the test on an error.
func (c client) must(m message) answer {
	c.t.Helper()
	a := c.ask(m)
	if a.errno != 0 || a.ended {
		c.t.Fatalf("%+v: %+v", m, a)
	}
	return a
}

var loopback = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)

// connect creates a connection between two sessions; first is the client's end.
func connect(a, b client, engine pipe.Engine) (first, second answer) {
	engines := uint32(1) << engine
	name := b.must(message{op: opBind, engines: engines, name: loopback})
	b.must(message{op: opListen, id: name.id, arg: 4})
	first = a.must(message{op: opConnect, engines: engines, name: netip.AddrPortFrom(loopback.Addr(), name.port)})
	second = b.must(message{op: opAccept, id: name.id})
	b.must(message{op: opClose, id: name.id})
	return first, second
}

// The broker disconnects a client that violates the protocol, and keeps serving others.
func TestGarbage(t *testing.T) {
	t.Parallel()
	_, socket := serve(t, nil)
	other := greeted(t, socket)
	hello := message{op: opHello, arg: pipe.Version}.packet()
	for name, packets := range map[string][][]byte{
		"short":           {hello[:63]},
		"long":            {append(append([]byte{}, hello...), 0)},
		"no hello":        {message{op: opBind}.packet()},
		"two hellos":      {hello, hello},
		"no operation":    {hello, message{}.packet()},
		"operation 99":    {hello, message{op: 99}.packet()},
		"bytes not known": {append(append([]byte{}, hello[:63]...), 1)},
	} {
		c := dial(t, socket)
		var last answer
		for _, p := range packets {
			last = c.send(p)
		}
		if !last.ended {
			t.Errorf("%s: %+v", name, last)
		}
	}
	for _, version := range []uint32{pipe.Version - 1, pipe.Version + 1} {
		if a := dial(t, socket).ask(message{op: opHello, arg: version}); a.errno != unix.EPROTONOSUPPORT {
			t.Errorf("version %d: %+v", version, a)
		}
	}
	other.must(message{op: opBind, name: loopback})
}

// A session cannot use handles of another session, whatever number it guesses.
func TestForgedNumbers(t *testing.T) {
	t.Parallel()
	_, socket := serve(t, nil)
	a, b, intruder := greeted(t, socket), greeted(t, socket), greeted(t, socket)
	first, second := connect(a, b, pipe.Sealed)
	a.must(message{op: opMapped, id: first.id})
	for _, id := range []uint32{0, 1, first.id, second.id, first.id + 1, second.id + 1} {
		for _, op := range []uint32{opListen, opAccept, opMapped, opRing, opGrow, opClose, opWake, opEnded, opLend, opTakeBack} {
			if got := intruder.ask(message{op: op, id: id, size: 1 << 20}); got.errno != unix.EBADF || len(got.files) > 0 {
				t.Errorf("operation %d, number %d: %+v", op, id, got)
			}
		}
	}
	b.must(message{op: opRing, id: second.id})
}

// A handle's number does not tell how many handles other processes have made.
func TestNumbersTellNothing(t *testing.T) {
	t.Parallel()
	_, socket := serve(t, nil)
	a := greeted(t, socket)
	seen := make(map[uint32]bool)
	var last uint32
	for range 16 {
		id := a.must(message{op: opBind, engines: 1 << pipe.Sealed, name: loopback}).id
		if seen[id] || id == last+1 {
			t.Errorf("handle %d after %d", id, last)
		}
		seen[id], last = true, id
	}
}

// The receiver of a sealed ring has no means to write to it, and no process can change its
// size.
func TestSealedIsReadOnly(t *testing.T) {
	t.Parallel()
	_, socket := serve(t, nil)
	a, b := greeted(t, socket), greeted(t, socket)
	first, second := connect(a, b, pipe.Sealed)
	if got := b.ask(message{op: opRing, id: second.id}); got.errno != unix.EAGAIN || len(got.files) > 0 {
		t.Fatalf("before it is sealed: %+v", got)
	}
	for i, fd := range first.files[1:] {
		if err := unix.Ftruncate(fd, 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("the sender shrinks file %d: %v", i, err)
		}
	}
	written, err := unix.Mmap(first.files[2], 0, int(first.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(written) }()
	a.must(message{op: opMapped, id: first.id})
	if got := a.ask(message{op: opMapped, id: first.id}); got.errno != unix.EINVAL {
		t.Errorf("sealed twice: %+v", got)
	}
	ring := b.must(message{op: opRing, id: second.id})
	if len(ring.files) != 2 || ring.size != first.size {
		t.Fatalf("%+v", ring)
	}
	if got := b.ask(message{op: opRing, id: second.id}); got.errno != unix.EALREADY || len(got.files) > 0 {
		t.Errorf("a second time: %+v", got)
	}
	written[0] = 42
	for i, fd := range ring.files {
		size := []int{4096, int(ring.size)}[i]
		read, err := unix.Mmap(fd, 0, size, unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		if i == 1 && read[0] != 42 {
			t.Errorf("the receiver reads %d", read[0])
		}
		if err := unix.Mprotect(read, unix.PROT_READ|unix.PROT_WRITE); err == nil {
			t.Errorf("file %d: mprotect makes it writable", i)
		}
		_ = unix.Munmap(read)
		again, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			again = -1 // refused: correct as well
		} else {
			defer unix.Close(again)
		}
		for _, fd := range []int{fd, again} {
			if fd < 0 {
				continue
			}
			if _, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
				t.Errorf("file %d: mapped writable", i)
			}
			if _, err := unix.Pwrite(fd, []byte{1}, 0); err == nil {
				t.Errorf("file %d: written", i)
			}
			if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096); err == nil {
				t.Errorf("file %d: a hole was made", i)
			}
			if err := unix.Ftruncate(fd, 1<<20); err == nil {
				t.Errorf("file %d: its size was changed", i)
			}
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err == nil {
				t.Errorf("file %d: a seal was added", i)
			}
		}
	}
}

// A ring only grows, up to the largest size.
func TestGrowBounds(t *testing.T) {
	t.Parallel()
	_, socket := serve(t, nil)
	a, b := greeted(t, socket), greeted(t, socket)
	first, _ := connect(a, b, pipe.Sealed)
	if got := a.ask(message{op: opGrow, id: first.id, size: 1 << 20}); got.errno != unix.EBUSY {
		t.Errorf("before the first is mapped: %+v", got)
	}
	a.must(message{op: opMapped, id: first.id})
	if got := a.ask(message{op: opGrow, id: first.id, size: 1 << 16}); got.errno != unix.EINVAL {
		t.Errorf("to its current size: %+v", got)
	}
	if got := a.must(message{op: opGrow, id: first.id, size: 1 << 63}); got.size != 4<<20 {
		t.Errorf("to the largest size: %+v", got)
	}
	a.must(message{op: opMapped, id: first.id, arg: 1})
	if got := a.ask(message{op: opGrow, id: first.id, size: 1 << 63}); got.errno != unix.EINVAL {
		t.Errorf("beyond the largest size: %+v", got)
	}
}

// The broker closes superfluous file descriptors, and a client that does not read does not
// delay others. Not parallel: other tests open files, too.
func TestRudeClient(t *testing.T) {
	_, socket := serve(t, nil)
	rude, other := greeted(t, socket), greeted(t, socket)
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if _, _, err := rude.conn.WriteMsgUnix(message{op: opClose, id: 7}.packet(), unix.UnixRights(0, 1, 2), nil); err != nil {
			break
		}
		other.must(message{op: opClose, id: other.must(message{op: opBind, name: loopback}).id})
	}
	after, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	if len(after) > len(files)+50 { // files are closed with a delay
		t.Errorf("%d files are open, before %d", len(after), len(files))
	}
	_ = rude.conn.Close()
}

// Whatever packets a client sends, the broker keeps serving others.
func FuzzSession(f *testing.F) {
	_, socket := serve(f, nil)
	peer := greeted(f, socket)
	name := peer.must(message{op: opBind, engines: 6, name: loopback})
	peer.must(message{op: opListen, id: name.id, arg: 4})
	f.Add(message{op: opConnect, engines: 2}.packet())
	f.Add(append(message{op: opBind}.packet(), message{op: opListen, id: 2, arg: 1 << 31}.packet()...))
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, b []byte) {
		peer := client{t, peer.conn}
		c := greeted(t, socket)
		for len(b) > 0 {
			n := min(len(b), 64)
			if c.sendWith(b[:n], rightsFor(t, b[:n], name.port)).ended {
				break
			}
			b = b[n:]
		}
		c.conn.Close()
		peer.must(message{op: opHello + 8, id: peer.must(message{op: opBind, name: loopback}).id})
	})
}

// rightsFor creates the socket that a valid packet has attached.
func rightsFor(t *testing.T, packet []byte, port uint16) []byte {
	m := message{op: binary.NativeEndian.Uint32(append(packet[:len(packet):len(packet)], 0, 0, 0, 0)), name: loopback}
	if m.op != opBind && m.op != opConnect {
		return nil
	}
	if m.op == opConnect {
		m.name = netip.AddrPortFrom(loopback.Addr(), port)
	}
	fd, err := m.tcp()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return unix.UnixRights(fd)
}
