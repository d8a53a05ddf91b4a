package pipe_test

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/nstest"
)

// Connections of the benchmark that move before they are closed, and at a time.
const (
	movesAtOnce   = 256
	movesTogether = 32
)

// BenchmarkMove moves connections to the pipe by the requests that scon run makes, and reports
// the broker's processor time for each.
func BenchmarkMove(b *testing.B) {
	needBPF(b)
	broker, socket := startBroker(b)
	ns := nstest.New(b)
	var l net.Listener
	if err := netns.Do(ns, func() (err error) {
		l, err = net.Listen("tcp4", "127.0.0.1:0")
		return err
	}); err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	ends := [2]client{greetedIn(b, ns, socket), greetedIn(b, ns, socket)}
	var spent [2]time.Duration
	account := func(part int, fn func()) {
		before, err := usedBy(broker.Process.Pid)
		if err != nil {
			b.Fatal(err)
		}
		fn()
		after, err := usedBy(broker.Process.Pid)
		if err != nil {
			b.Fatal(err)
		}
		spent[part] += after - before
	}
	moves := 0
	for b.Loop() {
		all := make([]*moved, movesAtOnce)
		if err := netns.Do(ns, func() (err error) {
			for i := range all {
				if all[i], err = newMoved(l); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
		account(0, func() {
			for some := range slices.Chunk(all, movesTogether) {
				for _, step := range []func(*moved, testing.TB, [2]client){
					(*moved).attach, (*moved).begin, (*moved).token, (*moved).arrive, (*moved).finish,
				} {
					for _, m := range some {
						step(m, b, ends)
					}
				}
			}
		})
		account(1, func() {
			for _, m := range all {
				ends[0].quick(b, message{op: opClose, id: m.ids[0]}, -1)
				m.close()
			}
		})
		moves += len(all)
	}
	for i, what := range []string{"move", "close"} {
		b.ReportMetric(float64(spent[i].Microseconds())/float64(moves), "broker-µs/"+what)
	}
	b.ReportMetric(0, "ns/op")
}

// moved is a TCP connection whose ends get their rings.
type moved struct {
	sockets [2]*os.File
	ids     [2]uint32
	alerts  [2]int
	notice  int     // of the server's end
	sends   [2]bool // its token, without opToken
	tokens  [2][tokenBytes]byte
	files   []int
}

func newMoved(l net.Listener) (*moved, error) {
	var m moved
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	for i, end := range []net.Conn{c, s} {
		if m.sockets[i], err = end.(*net.TCPConn).File(); err != nil {
			return nil, err
		}
	}
	return &m, nil
}

func (m *moved) attach(b testing.TB, ends [2]client) {
	for i, end := range ends {
		a, files := end.quick(b, message{op: opAttach, arg: 1}, int(m.sockets[i].Fd()))
		m.ids[i], m.alerts[i] = a.id, files[0]
		m.files = append(m.files, files...)
	}
}

func (m *moved) begin(b testing.TB, ends [2]client) {
	for i, end := range ends {
		awaitInput(b, m.alerts[i])
		a, files := end.quick(b, message{op: opAttached, id: m.ids[i], arg: 1}, -1)
		m.sends[i] = a.size == 1
		m.notice = files[0]
		m.files = append(m.files, files...)
		m.tokens[i] = a.secret
		if _, err := unix.Pread(m.notice, m.tokens[i][markBytes:], noticeNonce); err != nil {
			b.Fatal(err)
		}
	}
}

func (m *moved) token(b testing.TB, ends [2]client) {
	for i, end := range ends {
		if !m.sends[i] {
			end.quick(b, message{op: opToken, id: m.ids[i]}, -1)
		}
		if _, err := m.sockets[i].Write(m.tokens[i][:]); err != nil {
			b.Fatal(err)
		}
	}
}

func (m *moved) arrive(b testing.TB, ends [2]client) {
	for i, end := range ends {
		if _, _, err := unix.Recvfrom(int(m.sockets[i].Fd()), make([]byte, tokenBytes), unix.MSG_PEEK|unix.MSG_WAITALL); err != nil {
			b.Fatal(err)
		}
		end.quick(b, message{op: opArrived, id: m.ids[i]}, int(m.sockets[i].Fd()))
		if _, err := io.ReadFull(m.sockets[i], make([]byte, tokenBytes)); err != nil {
			b.Fatal(err)
		}
	}
}

func (m *moved) finish(b testing.TB, ends [2]client) {
	eventually(b, "the proof", func() bool {
		var proven [4]byte
		_, err := unix.Pread(m.notice, proven[:], noticeNonce-4)
		return err == nil && proven[0] == 1
	})
	for i, end := range ends {
		_, files := end.quick(b, message{op: opProven, id: m.ids[i]}, -1)
		m.files = append(m.files, files...)
	}
}

func (m *moved) close() {
	for _, fd := range m.files {
		unix.Close(fd)
	}
	for _, s := range m.sockets {
		s.Close()
	}
}

// quick is ask without what a test of many thousand requests would keep.
func (c client) quick(b testing.TB, m message, file int) (a answer, files []int) {
	fd := c.fd(b)
	var rights []byte
	if file >= 0 {
		rights = unix.UnixRights(file)
	}
	if err := unix.Sendmsg(fd, m.packet(), rights, nil, 0); err != nil {
		b.Fatal(err)
	}
	var buf [64]byte
	var oob [128]byte
	awaitInput(b, fd)
	n, oobn, _, _, err := unix.Recvmsg(fd, buf[:], oob[:], 0)
	if err != nil || n != len(buf) {
		b.Fatal(n, err)
	}
	a.errno, a.id = unix.Errno(binary.NativeEndian.Uint32(buf[:])), binary.NativeEndian.Uint32(buf[4:])
	if a.errno != 0 {
		b.Fatalf("%+v: %v", m, a.errno)
	}
	a.size = binary.NativeEndian.Uint64(buf[40:])
	copy(a.secret[:markBytes], buf[16:])
	if messages, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil && len(messages) > 0 {
		if files, err = unix.ParseUnixRights(&messages[0]); err != nil {
			b.Fatal(err)
		}
	}
	return a, files
}

func (c client) fd(b testing.TB) (fd int) {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		b.Fatal(err)
	}
	_ = raw.Control(func(f uintptr) { fd = int(f) })
	return fd
}

// awaitInput waits until a file has something to read.
func awaitInput(b testing.TB, fd int) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, 20000)
		if n == 1 {
			return
		}
		if err != unix.EINTR {
			b.Fatal("no input: ", err)
		}
	}
}
