package pipe_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe"
)

// hostile is a process in a container that takes as many of the broker's resources as it can,
// and keeps them until it ends.
type hostile struct {
	socket string
	keep   []int
	files  []int // of the last reply
}

// attacks by a hostile container, by name. test/services runs them, too.
var attacks = []struct {
	name    string
	refused string // counter of refusals that it raises; "": none
	run     func(*hostile) (got int, errno error)
	last    error // what it ends with; nil: any
}{
	{"pending connections", "files", (*hostile).pending, nil},
	{"memory", "memory", (*hostile).memory, nil},
	{"half-open attaches", "files", (*hostile).attaches, nil},
	{"names", "files", (*hostile).names, nil},
	{"processes", "files", (*hostile).processes, nil},
	{"doorbells", "", (*hostile).doorbells, nil},
	{"rechecks", "", (*hostile).rechecks, nil},
	{"lingering closes", "close hangs", (*hostile).lingering, unix.EBUSY},
}

// runHostile is the hostile process. It prints the result of its attack.
func runHostile(socket string) int {
	up := exec.Command("ip", "link", "set", "lo", "up")
	up.Stderr = os.Stderr
	if err := up.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	h := &hostile{socket: socket}
	for _, a := range attacks {
		if a.name == os.Getenv("SCON_TEST_ATTACK") {
			got, err := a.run(h)
			fmt.Printf("%d, then %v\n", got, err)
		}
	}
	fmt.Println("done")
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the test closes it
	return 0
}

// dial opens a session.
func (h *hostile) dial() (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	h.keep = append(h.keep, fd)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: h.socket}); err != nil {
		return -1, err
	}
	_, err = h.ask(fd, message{op: opHello, arg: pipe.Version}, -1)
	return fd, err
}

// ask sends a request with a file, and returns the reply's bytes. It keeps the reply's files
// open.
func (h *hostile) ask(fd int, m message, file int) (reply []byte, err error) {
	var rights []byte
	if file >= 0 {
		rights = unix.UnixRights(file)
	}
	if err := unix.Sendmsg(fd, m.packet(), rights, nil, unix.MSG_NOSIGNAL); err != nil {
		return nil, err
	}
	reply, oob := make([]byte, 64), make([]byte, 128)
	n, oobn, _, _, err := unix.Recvmsg(fd, reply, oob, 0)
	if err == nil && n == 0 {
		err = unix.ECONNRESET
	}
	if err != nil {
		return nil, err
	}
	h.files = nil
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	for _, m := range messages {
		files, _ := unix.ParseUnixRights(&m)
		h.files = append(h.files, files...)
	}
	h.keep = append(h.keep, h.files...)
	if errno := unix.Errno(binary.NativeEndian.Uint32(reply)); err == nil && errno != 0 {
		err = errno
	}
	return reply, err
}

// listen binds a name in a session, and listens.
func (h *hostile) listen(fd int, engine pipe.Engine) (id uint32, port uint16, err error) {
	if id, port, err = h.bind(fd, engine); err == nil {
		_, err = h.ask(fd, message{op: opListen, id: id, arg: 1 << 20}, -1)
	}
	return id, port, err
}

// bind binds a name in a session.
func (h *hostile) bind(fd int, engine pipe.Engine) (id uint32, port uint16, err error) {
	m := message{op: opBind, engines: 1 << engine, name: loopback}
	tcp, err := m.tcp()
	if err != nil {
		return 0, 0, err
	}
	defer unix.Close(tcp)
	reply, err := h.ask(fd, m, tcp)
	if err != nil {
		return 0, 0, err
	}
	return binary.NativeEndian.Uint32(reply[4:]), binary.NativeEndian.Uint16(reply[34:]), nil
}

// pending creates connections that no server accepts.
func (h *hostile) pending() (got int, err error) {
	fd, err := h.dial()
	if err != nil {
		return 0, err
	}
	for {
		_, port, err := h.listen(fd, pipe.Unix)
		if err != nil {
			return got, err
		}
		if n, err := h.fill(fd, port, pipe.Unix); err != nil {
			return got + n, err
		}
	}
}

// fill connects to a name until that fails. A proof may fail because the machine is busy, a
// few of them.
func (h *hostile) fill(fd int, port uint16, engine pipe.Engine) (got int, err error) {
	const mostUnproved = 8
	for unproved := 0; ; {
		switch _, err := h.connect(fd, port, engine); {
		case err == nil:
			got++
		case errors.Is(err, unix.ECONNREFUSED) && unproved < mostUnproved:
			unproved++
		default:
			return got, err
		}
	}
}

// connect connects to a name, and returns the connection's ID.
func (h *hostile) connect(fd int, port uint16, engine pipe.Engine) (id uint32, err error) {
	m := message{op: opConnect, engines: 1 << engine, name: netip.AddrPortFrom(loopback.Addr(), port)}
	tcp, err := m.tcp()
	if err != nil {
		return 0, err
	}
	defer unix.Close(tcp)
	reply, err := h.ask(fd, m, tcp)
	if err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint32(reply[4:]), nil
}

// memory creates connections with rings.
func (h *hostile) memory() (got int, err error) {
	fd, err := h.dial()
	if err != nil {
		return 0, err
	}
	_, port, err := h.listen(fd, pipe.Sealed)
	if err != nil {
		return 0, err
	}
	return h.fill(fd, port, pipe.Sealed)
}

// doorbells signals those of both ends of 32 connections of copier for a twentieth of the
// time, as a container with 5 % of a processor does.
func (h *hostile) doorbells() (got int, err error) {
	fd, err := h.dial()
	if err != nil {
		return 0, err
	}
	name, port, err := h.listen(fd, pipe.Copier)
	if err != nil {
		return 0, err
	}
	var bells []int
	for range 32 {
		client, err := h.connect(fd, port, pipe.Copier)
		if err != nil {
			return len(bells), err
		}
		bells = append(bells, h.files[0])
		reply, err := h.ask(fd, message{op: opAccept, id: name}, -1)
		if err != nil {
			return len(bells), err
		}
		bells = append(bells, h.files[0])
		for _, id := range []uint32{client, binary.NativeEndian.Uint32(reply[4:])} {
			if _, err := h.ask(fd, message{op: opMapped, id: id}, -1); err != nil {
				return len(bells), err
			}
		}
	}
	go func() {
		for begin := time.Now(); ; {
			if time.Since(begin) > 5*time.Millisecond {
				time.Sleep(95 * time.Millisecond)
				begin = time.Now()
			}
			for _, bell := range bells {
				_ = unix.Sendto(bell, []byte{0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
			}
		}
	}()
	return len(bells), nil
}

// rechecks keeps up to 500 connections, and replaces them every two seconds: each has to
// prove itself when rules change.
func (h *hostile) rechecks() (got int, err error) {
	const most = 500
	open := func() (one *hostile, got int, err error) {
		one = &hostile{socket: h.socket}
		fd, err := one.dial()
		if err != nil {
			return one, 0, err
		}
		_, port, err := one.listen(fd, pipe.Sealed)
		for ; err == nil && got < most; got++ {
			_, err = one.connect(fd, port, pipe.Sealed)
		}
		return one, got, err
	}
	last, got, err := open()
	go func() {
		for {
			time.Sleep(2 * time.Second)
			next, _, _ := open()
			for _, fd := range last.keep {
				unix.Close(fd)
			}
			last = next
		}
	}()
	return got, err
}

// attaches attaches ends of TCP connections whose other ends are never attached.
func (h *hostile) attaches() (got int, err error) {
	fd, err := h.dial()
	if err != nil {
		return 0, err
	}
	m := message{op: opBind, name: loopback}
	listener, err := m.tcp()
	if err != nil {
		return 0, err
	}
	defer unix.Close(listener)
	name, err := unix.Getsockname(listener)
	if err != nil {
		return 0, err
	}
	for ; ; got++ {
		tcp, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return got, err
		}
		if err := unix.Connect(tcp, name); err != nil {
			unix.Close(tcp)
			return got, err
		}
		other, _, err := unix.Accept(listener)
		if err == nil {
			_, err = h.ask(fd, message{op: opAttach}, tcp)
			unix.Close(other)
		}
		unix.Close(tcp)
		if err != nil {
			return got, err
		}
	}
}

// lingering passes TCP sockets with unsent bytes whose last close waits for a peer that
// never reads, in as many sessions as it gets: one in a request, several in another one, which
// the broker receives with too little room for them or closes unread. It ends when the broker
// refuses another session.
func (h *hostile) lingering() (got int, err error) {
	listener, err := message{op: opBind, name: loopback}.tcp()
	if err != nil {
		return 0, err
	}
	name, err := unix.Getsockname(listener)
	if err != nil {
		return 0, err
	}
	type pass struct {
		session int
		files   []int
	}
	var all []pass
	for n := range 1000 {
		fd, err := h.dial()
		if err != nil {
			return n, err
		}
		for k := range 2 { // one file, then three, or three, then one
			p := pass{session: fd}
			for range 1 + 2*((n+k)%2) {
				tcp, err := h.lingers(listener, name)
				if err != nil {
					return n, err
				}
				p.files = append(p.files, tcp)
			}
			all = append(all, p)
		}
	}
	for _, p := range all { // at once: the broker refuses them once some closes hang
		_ = passLast(p.session, p.files)
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err = h.dial(); err != nil {
			break
		}
	}
	return len(all), err
}

// passLast passes files to the broker, and closes them at once, so that the broker's close of each
// is the last one. If the broker is faster, the close here is, and hangs.
func passLast(session int, files []int) error {
	sent := make(chan error, 1)
	go func() {
		sent <- unix.Sendmsg(session, message{op: opWake}.packet(), unix.UnixRights(files...), nil, unix.MSG_NOSIGNAL)
		for _, fd := range files {
			unix.Close(fd)
		}
	}()
	return <-sent
}

// lingers returns a TCP socket whose last close blocks.
func (h *hostile) lingers(listener int, name unix.Sockaddr) (tcp int, err error) {
	tcp, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(tcp, name)
	}
	if err != nil {
		return -1, err
	}
	if other, _, err := unix.Accept(listener); err == nil {
		h.keep = append(h.keep, other)
	}
	for err == nil {
		_, err = unix.SendmsgN(tcp, make([]byte, 64<<10), nil, nil, unix.MSG_DONTWAIT)
	}
	return tcp, unix.SetsockoptLinger(tcp, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600})
}

// names binds names in one session.
func (h *hostile) names() (got int, err error) {
	fd, err := h.dial()
	if err != nil {
		return 0, err
	}
	for ; ; got++ {
		if _, _, err := h.bind(fd, pipe.Unix); err != nil {
			return got, err
		}
	}
}

// processes opens sessions until a hundred were refused.
func (h *hostile) processes() (got int, err error) {
	for refused := 0; refused < 100; {
		if _, err = h.dial(); err != nil {
			refused++
		} else {
			got++
		}
	}
	return got, err
}

// unified returns the mount point of cgroup2.
func unified(t *testing.T) string {
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil {
			if _, err := os.Stat(filepath.Join(dir, "cgroup.controllers")); err == nil {
				return dir
			}
		}
	}
	t.Skip("missing: cgroup 2")
	return ""
}

// startHostile starts the hostile process as root of its own user namespace, in its own
// network namespace and cgroup, and returns what it prints.
func startHostile(t *testing.T, socket, attack string) (said string) {
	t.Helper()
	dir := filepath.Join(unified(t), fmt.Sprintf("scon-hostile-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		t.Skipf("missing: a cgroup that can be made: %v", err)
	}
	group, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "SCON_TEST_HOSTILE="+socket, "SCON_TEST_ATTACK="+attack)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential:  &syscall.Credential{NoSetGroups: true}, // root there
		UseCgroupFD: true, CgroupFD: int(group.Fd()), Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 1}},
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
		for end := time.Now().Add(10 * time.Second); os.Remove(dir) != nil && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
	})
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == "done" {
			return said
		}
		said = lines.Text()
	}
	t.Fatalf("the hostile process ended: %s", said)
	return ""
}

// While a container tries to exhaust the broker's resources, another container can connect,
// and the broker answers the operator. Not parallel: the test counts open files.
func TestHostileContainer(t *testing.T) {
	for _, a := range attacks {
		t.Run(strings.ReplaceAll(a.name, " ", "-"), func(t *testing.T) {
			b, socket := serve(t, func(o *pipe.Options) { o.MemoryLimit = 64 << 20 })
			for dir := filepath.Dir(socket); dir != os.TempDir(); dir = filepath.Dir(dir) {
				if err := os.Chmod(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			said := startHostile(t, socket, a.name)
			if a.last != nil && !strings.HasSuffix(said, a.last.Error()) {
				t.Errorf("the attack ends with %q, want %v", said, a.last)
			}
			refused := b.Status().Refused
			if a.refused != "" && refused[a.refused] == 0 {
				t.Errorf("refused: %v, want some for %s", refused, a.refused)
			}
			files, limit := openFiles(t)
			if files > limit*3/4 {
				t.Errorf("%d of %d files are open", files, limit)
			}
			threads, err := os.ReadDir("/proc/self/task")
			t.Logf("bound: the broker and its test have %d threads", len(threads))
			if err != nil || len(threads) > 512 {
				t.Errorf("%d threads: %v", len(threads), err)
			}
			longest := longestConnect(t, socket)
			start := time.Now()
			b.Status()
			t.Logf("bound: %s: %s; refused: %v; %d of %d files open; meanwhile 100 connections of others, the longest in %v, status in %v",
				a.name, said, refused, files, limit, longest, time.Since(start))
		})
	}
}

func openFiles(t *testing.T) (n, limit int) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		t.Fatal(err)
	}
	return len(files), int(l.Cur)
}

// longestConnect creates connections from another container. Each has to succeed.
func longestConnect(t *testing.T, socket string) (longest time.Duration) {
	t.Helper()
	for range 100 {
		start := time.Now()
		x, y := greeted(t, socket), greeted(t, socket)
		connect(x, y, pipe.Sealed)
		longest = max(longest, time.Since(start))
		x.conn.Close()
		y.conn.Close()
	}
	return longest
}
