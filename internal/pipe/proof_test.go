package pipe_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/test/bed/nstest"
)

// reachAs is reach, by a process with those attributes.
func reachAs(t *testing.T, ns, socket string, as *syscall.SysProcAttr) unix.Errno {
	t.Helper()
	cmd := role(t, socket, "client")
	cmd.SysProcAttr = as
	return reachBy(t, ns, cmd)
}

// testCgroup creates a cgroup in which the test can start processes.
func testCgroup(t *testing.T) *os.File {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	root := ""
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			root = f[1]
		}
	}
	if root == "" {
		t.Skip("missing: a mount of cgroup 2")
	}
	path := filepath.Join(root, fmt.Sprintf("scon-test-%d-%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "-")))
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	})
	group, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { group.Close() })
	return group
}

// The kernel checks the process's own rights to bind a port.
func TestPrivilegedPort(t *testing.T) {
	t.Parallel()
	_, socket := serve(t, nil)
	for rights, want := range map[string]string{"+all": "ready", "-net_bind_service": "errno 13"} {
		serve := command(t, socket, "reach", "ENGINE=sealed", "ROLE=server", "ADDR=127.0.0.1", "PORT=80")
		cmd := exec.Command("setpriv", "--bounding-set="+rights, serve.Path, "reach")
		cmd.Env = serve.Env
		cmd.Stdin, cmd.WaitDelay = strings.NewReader(""), time.Second
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := netns.Do(nstest.New(t), cmd.Start); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if !strings.Contains(out.String(), want) {
			t.Errorf("with %s the output is %q, want %q", rights, out.String(), want)
		}
	}
}

// The broker refuses sockets other than TCP sockets of the process's own network namespace.
func TestSocketOfOthers(t *testing.T) {
	t.Parallel()
	_, socket := serve(t, nil)
	c := greeted(t, socket)
	name := c.must(message{op: opBind, engines: 2, name: loopback})
	c.must(message{op: opListen, id: name.id})
	here := netip.AddrPortFrom(loopback.Addr(), name.port)
	elsewhere := func(m message) (fd int) {
		if err := netns.Do(nstest.New(t), func() (err error) {
			if m.op == opConnect { // a listener has to accept
				l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(m.name))
				if err != nil {
					return err
				}
				t.Cleanup(func() { l.Close() })
			}
			fd, err = m.tcp()
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return fd
	}
	own := func(m message) int {
		fd, err := m.tcp()
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	other := func(domain, kind, protocol int) int {
		fd, err := unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	bind, connect := message{op: opBind, name: loopback}, message{op: opConnect, name: here}
	for what, it := range map[string]struct {
		op   uint32
		fd   int
		want unix.Errno
	}{
		"a listener of another namespace":         {opBind, elsewhere(bind), unix.EXDEV},
		"a connection of another namespace":       {opConnect, elsewhere(connect), unix.EXDEV},
		"a connection where a listener has to be": {opBind, own(connect), unix.ENOTSOCK},
		"a listener where a connection has to be": {opConnect, own(bind), unix.ENOTSOCK},
		"a socket that is not connected":          {opConnect, other(unix.AF_INET, unix.SOCK_STREAM, 0), unix.ENOTSOCK},
		"UDP":                                     {opConnect, other(unix.AF_INET, unix.SOCK_DGRAM, 0), unix.ENOTSOCK},
		"IPv6":                                    {opBind, other(unix.AF_INET6, unix.SOCK_STREAM, 0), unix.ENOTSOCK},
		"a UNIX socket":                           {opConnect, other(unix.AF_UNIX, unix.SOCK_STREAM, 0), unix.ENOTSOCK},
		"no socket":                               {opBind, null, unix.ENOTSOCK},
	} {
		got := c.sendWith(message{op: it.op, engines: 2}.packet(), unix.UnixRights(it.fd))
		if got.errno != it.want || len(got.files) > 0 {
			t.Errorf("%s: %+v, want %v", what, got, it.want)
		}
		unix.Close(it.fd)
	}
	for _, op := range []uint32{opBind, opConnect} {
		if got := c.ask(message{op: op, engines: 2}); got.errno != unix.EBADF {
			t.Errorf("no file with operation %d: %+v", op, got)
		}
	}
	if got := c.must(message{op: opConnect, engines: 2, name: here}); got.port == 0 {
		t.Errorf("%+v", got)
	}
}

// The broker closes connections to a name's port that send no valid token, and they do not
// keep clients of the pipe away.
func TestStrangers(t *testing.T) {
	t.Parallel()
	_, socket := serve(t, nil)
	c := greeted(t, socket)
	name := c.must(message{op: opBind, engines: 1 << pipe.Unix, name: loopback})
	c.must(message{op: opListen, id: name.id, arg: 10})
	where := netip.AddrPortFrom(loopback.Addr(), name.port)
	closedAfter := func(conn net.Conn) time.Duration {
		begun := time.Now()
		if err := conn.SetReadDeadline(begun.Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d bytes, %v", n, err)
		}
		return time.Since(begun)
	}
	stranger := func() net.Conn {
		conn, err := net.DialTCP("tcp4", nil, net.TCPAddrFromAddrPort(where))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	silent, garbage := stranger(), stranger()
	if _, err := garbage.Write(make([]byte, tokenBytes)); err != nil {
		t.Fatal(err)
	}
	if after := closedAfter(garbage); after > time.Second {
		t.Errorf("after a wrong token it is closed in %v", after)
	}
	if after := closedAfter(silent); after < time.Second || after > 4*time.Second {
		t.Errorf("one that sends nothing is closed in %v", after)
	}
	first := stranger()
	for range 100 {
		stranger()
	}
	if after := closedAfter(first); after > time.Second {
		t.Errorf("the first of many is closed in %v", after)
	}
	c.must(message{op: opConnect, engines: 1 << pipe.Unix, name: where})
}

// Rules that accept the TCP handshake and drop later packets prevent a connection, too.
func TestHandshakeAlone(t *testing.T) {
	t.Parallel()
	b, socket := serve(t, nil)
	one, two := neighbours(t)
	startServer(t, two, socket)
	nstest.Run(t, two, `nft add table ip f
		nft add chain ip f in { type filter hook input priority 0 ; }
		nft add rule ip f in tcp dport 7000 tcp flags psh drop`)
	begun := time.Now()
	if err := reach(t, one, socket); err != unix.ECONNREFUSED {
		t.Errorf("%v", err)
	}
	if took := time.Since(begun); took > 4*time.Second {
		t.Errorf("it took %v", took)
	}
	if n := b.Status().Refused["network"]; n != 1 {
		t.Errorf("%d refusals counted", n)
	}
}

// Rules that drop packets silently reset a connection within 2 seconds.
func TestResetInTime(t *testing.T) {
	t.Parallel()
	b, socket := serve(t, nil)
	one, two := neighbours(t)
	server := startRuled(t, two, socket, "ENGINE=unix", "ROLE=server")
	client := startRuled(t, one, socket, "ENGINE=unix", "ROLE=client")
	nstest.Run(t, two, `nft add table ip f
		nft add chain ip f in { type filter hook input priority 0 ; }
		nft add rule ip f in iifname v1 drop`)
	begun := time.Now()
	b.Recheck()
	for _, p := range []ruled{server, client} {
		p.says(strconv.Itoa(int(unix.ECONNRESET)))
	}
	if took := time.Since(begun); took > 2500*time.Millisecond { // 2 s, and a busy machine
		t.Errorf("it took %v", took)
	}
	for _, p := range []ruled{server, client} {
		if err := p.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// The proofs of many connections take less work than their time limit, and none is reset. On a
// busy machine they may take longer than that.
func TestRecheckMany(t *testing.T) {
	const perProcess, processes = 1024, 4
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	if most := uint64(4*perProcess*processes + 1000); files.Max < most {
		t.Skipf("missing: a limit of %d open files; here it is %d", most, files.Max)
	}
	b, socket := serve(t, func(o *pipe.Options) { o.Share = 100 })
	var begun sync.WaitGroup
	for range processes {
		cmd := command(t, socket, "hold", "ENGINE=unix", fmt.Sprintf("COUNT=%d", perProcess))
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { in.Close() })
		ns := nstest.New(t)
		begun.Go(func() { begin(t, ns, cmd) })
	}
	begun.Wait()
	used := processTime(t)
	start := time.Now()
	b.RecheckWithin(time.Minute).Wait()
	took, work := time.Since(start), processTime(t)-used
	t.Logf("%d connections in %v, %v of CPU time", perProcess*processes, took, work)
	if s := b.Status(); len(s.Connections) != perProcess*processes || s.Refused["rules changed"] != 0 {
		t.Errorf("%d connections, refused: %v", len(s.Connections), s.Refused)
	}
	if work > pipe.ProofPatience {
		t.Errorf("the proofs took %v of CPU time, of %v", work, pipe.ProofPatience)
	}
}

func processTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A process that holds its TCP sockets' locks, by system calls that wait for memory, gets no
// connections, and no other process waits for it.
func TestHeldTCP(t *testing.T) {
	t.Parallel()
	b, socket := serve(t, nil)
	rude, peer, other := greeted(t, socket), greeted(t, socket), greeted(t, socket)
	bind := message{op: opBind, engines: 1 << pipe.Unix, name: loopback}
	tcp := func(m message) int {
		fd, err := m.tcp()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	// A connection whose client holds its socket's lock is reset.
	name := peer.must(bind)
	peer.must(message{op: opListen, id: name.id, arg: 4})
	where := netip.AddrPortFrom(loopback.Addr(), name.port)
	client := tcp(message{op: opConnect, name: where})
	if a := rude.sendWith(message{op: opConnect, engines: 1 << pipe.Unix}.packet(), unix.UnixRights(client)); a.errno != 0 {
		t.Fatalf("%+v", a)
	}
	other.must(message{op: opConnect, engines: 1 << pipe.Unix, name: where})
	holdLock(t, client)
	b.RecheckNow()
	over := 0
	for _, c := range b.Status().Connections {
		if c.Over {
			over++
		}
	}
	if n := b.Status().Refused["rules changed"]; n != 1 || over != 1 {
		t.Errorf("%d connections are over, %d were reset", over, n)
	}
	// A connect with a held lock is refused; a name whose lock is held accepts nothing.
	late, listener := tcp(message{op: opConnect, name: where}), tcp(bind)
	held := greeted(t, socket)
	mine := held.sendWith(message{op: opBind, engines: 1 << pipe.Unix}.packet(), unix.UnixRights(listener))
	held.must(message{op: opListen, id: mine.id, arg: 4})
	holdLock(t, late)
	holdLock(t, listener)
	if a := rude.sendWith(message{op: opConnect, engines: 1 << pipe.Unix}.packet(), unix.UnixRights(late)); a.errno != unix.ETIMEDOUT {
		t.Errorf("%+v", a)
	}
	other.must(message{op: opConnect, engines: 1 << pipe.Unix, name: where})
	answers(t, b)
}

// The broker needs three capabilities, no namespace of a container and no mount of the host.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	// A service is alone in its cgroup.
	const private = `echo $$ >"$0/cgroup.procs" && mount -t tmpfs tmpfs /run/netns &&
		exec setpriv --no-new-privs --bounding-set=-all,+bpf,+net_admin,+perfmon "$1"`
	group, socket := testCgroup(t), filepath.Join(t.TempDir(), "p")
	startBrokerAt(t, socket, "unshare", "--mount", "sh", "-c", private, group.Name())
	one, two := neighbours(t)
	for _, engine := range engines(t) {
		runTopic(t, one, socket, "connect", "ENGINE="+engine.String())
	}
	startServer(t, two, socket)
	if err := reach(t, one, socket); err != 0 {
		t.Error(err)
	}
	if hasBPF(t) {
		client, server := tcpPair(t, two)
		a, other := greetedIn(t, two, socket), greetedIn(t, two, socket)
		mine, theirs := a.attach(client), other.attach(server)
		if mine.errno != 0 || theirs.errno != 0 {
			t.Errorf("%+v, %+v", mine, theirs)
		}
		prove(t, [2]*crossing{a.cross(mine.id, client), other.cross(theirs.id, server)})
		eventually(t, "a ring", func() bool { return a.ask(message{op: opProven, id: mine.id}).errno == 0 })
	}
}
