package services

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/internal/state"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// Variables of the hostile process.
const (
	hostileSocket = "SCON_TEST_HOSTILE_SOCKET"
	hostileTarget = "SCON_TEST_HOSTILE_TARGET"
)

// blackHoleSessions is the number of sessions that connect to a black hole.
const blackHoleSessions = 500

// Requests of the pipe's protocol: libsconpipe/src/wire.h.
const (
	opHello   = 1
	opConnect = 5
)

// runHostile is the hostile process of the attack "black hole". It attacks until the test
// ends it, and prints a line when the attack has begun.
func runHostile(socket string) int {
	for range blackHoleSessions {
		go connectAgain(socket, os.Getenv(hostileTarget))
	}
	fmt.Printf("%d sessions connect to a black hole\n", blackHoleSessions)
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the test closes it
	return 0
}

// openSession opens a session, which stays open.
func openSession(socket string) (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		return -1, err
	}
	return fd, askBroker(fd, opHello, pipe.Version, nil)
}

// askBroker sends a request and waits for its reply.
func askBroker(fd int, op, arg uint32, rights []byte) error {
	packet := make([]byte, 64)
	binary.NativeEndian.PutUint32(packet, op)
	binary.NativeEndian.PutUint32(packet[8:], arg)
	binary.NativeEndian.PutUint32(packet[12:], 1<<pipe.Sealed)
	if err := unix.Sendmsg(fd, packet, rights, nil, unix.MSG_NOSIGNAL); err != nil {
		return err
	}
	n, _, _, _, err := unix.Recvmsg(fd, packet, make([]byte, 128), 0)
	if err == nil && n == 0 {
		err = unix.ECONNRESET
	}
	if errno := binary.NativeEndian.Uint32(packet); err == nil && errno != 0 {
		err = unix.Errno(errno)
	}
	return err
}

// connectAgain makes connections to a name again and again, in one session. It ends at an
// error that a network that drops packets does not cause.
func connectAgain(socket, target string) {
	fd, err := openSession(socket)
	for err == nil || errors.Is(err, unix.ETIMEDOUT) || errors.Is(err, unix.ECONNRESET) {
		err = connectOver(fd, target)
	}
}

// connectOver connects a TCP socket to a name, and asks the broker for the connection.
func connectOver(fd int, target string) error {
	tcp, err := net.Dial("tcp4", target)
	if err != nil {
		return err
	}
	defer tcp.Close()
	socket, err := tcp.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	controlErr := socket.Control(func(raw uintptr) { err = askBroker(fd, opConnect, 0, unix.UnixRights(int(raw))) })
	return errors.Join(controlErr, err)
}

// buildAttacks builds the tests of package pipe: a process of them attacks the broker.
func buildAttacks(t *testing.T) string {
	t.Helper()
	program := filepath.Join(built, "pipe.test")
	if text, err := exec.Command("go", "test", "-C", "../..", "-c", "-vet=off", "-o", program, "./internal/pipe").CombinedOutput(); err != nil {
		t.Fatalf("build the attacks: %v: %s", err, text)
	}
	return program
}

// startHostile starts the hostile process in container 3, in a cgroup of its own, and returns
// what it prints.
func startHostile(b *scontest.Bed, attack string, target netip.AddrPort) (said string) {
	t := b.T
	t.Helper()
	group := makeCgroup(t, "hostile")
	defer group.Close()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	env := []string{hostileSocket + "=" + pipe.Socket(b.StateDir()), hostileTarget + "=" + target.String()}
	if attack != blackHole {
		program = buildAttacks(t)
		env = []string{"SCON_TEST_HOSTILE=" + pipe.Socket(b.StateDir()), "SCON_TEST_ATTACK=" + attack}
	}
	cmd := exec.Command("nsenter", "--net="+b.Node("c3"), program)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
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
	})
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("the hostile process ended")
	}
	return lines.Text()
}

// makeCgroup makes a cgroup of version 2 that is removed after the test.
func makeCgroup(t *testing.T, name string) *os.File {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
			continue
		}
		dir := filepath.Join(root, fmt.Sprintf("scon-%s-%d", name, os.Getpid()))
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			t.Skipf("missing: a cgroup that can be made: %v", err)
		}
		t.Cleanup(func() {
			for end := time.Now().Add(scontest.Patience); os.Remove(dir) != nil && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
		})
		group, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		return group
	}
	t.Skip("missing: cgroup 2")
	return nil
}

// blackHole is the attack by connections whose proofs time out.
const blackHole = "black hole"

// While a container attacks the broker, "scon status" answers, the startup service attaches
// and detaches containers, a stream stays express, and programs of other containers connect
// through the pipe.
func TestServicesUnderAttack(t *testing.T) {
	for _, a := range []struct{ name, refused string }{
		{"processes", "files"}, {"names", "files"}, {"pending connections", "files"}, {"memory", "memory"},
		{"half-open attaches", "files"}, {"doorbells", ""}, {"rechecks", "rules changed"}, {blackHole, "network"},
	} {
		t.Run(a.name, func(t *testing.T) { underAttack(t, a.name, a.refused) })
	}
}

func underAttack(t *testing.T, attack, refused string) {
	b := scontest.NewExpress(t, scontest.Layout{Containers: 3, Service: true, SCON: release(t, "v1.0.0"), Config: func(c *config.Config) {
		c.Startup.Enabled, c.Startup.Pool = true, config.Pool{MemoryLimit: 1 << 20, Cooldown: time.Second}
		c.Pipe.Enabled = true
		c.Pipe.Engines = []string{"sealed", "bpf", "copier", "unix"} // the attacks use all of them
	}})
	b.Serve(state.Startup)
	group := makeCgroup(t, "broker") // as systemd does
	defer group.Close()
	broker := b.Serve(state.Pipe)
	if err := os.WriteFile(filepath.Join(group.Name(), "cgroup.procs"), []byte(strconv.Itoa(broker.Cmd.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	packets, bytes := b.StartTraffic(), startLoad(b)
	packets.WaitExpress()
	// The handshake passes, no data does: proofs of container 3 time out.
	b.Sh("c3", `
		nft add table ip t
		nft add chain ip t out { type filter hook output priority 0; }
		nft add rule ip t out tcp dport 7000 meta length > 60 drop`)
	said := startHostile(b, attack, netip.AddrPortFrom(b.Addr("c2"), 7000))
	used, began := broker.ProcessorTime(), time.Now()
	longest := make(map[string]time.Duration)
	measure := func(what string, fn func()) {
		start := time.Now()
		fn()
		longest[what] = max(longest[what], time.Since(start))
	}
	for range 5 {
		if attack == "rechecks" {
			b.Sh("c3", "nft add rule ip t out oif lo meta length > 60 drop")
			b.Sh(lab.Device, "nft add table ip changes\nnft delete table ip changes")
		}
		measure("scon status", func() { showStatus(b) })
		measure("CNI ADD and DEL", func() { attachAndDetach(b) })
		measure("a connection and 0.1 s of bytes through the pipe", func() { connectOnce(b) })
		bytes.proceed()
		packets.Proceed()
		if attack == "rechecks" {
			scontest.Eventually(t, "a proof has timed out", func() error {
				p, err := bytes.status()
				if err == nil && p.Refused[refused] == 0 {
					err = errors.New("none has")
				}
				return err
			})
			b.Sh("c3", "nft flush chain ip t out")
		}
	}
	packets.WaitExpress()
	share := (broker.ProcessorTime() - used).Seconds() / time.Since(began).Seconds()
	p, err := bytes.status()
	if err != nil {
		t.Fatal(err)
	}
	if refused != "" && p.Refused[refused] == 0 {
		t.Errorf("refused: %v, want some for %s", p.Refused, refused)
	}
	t.Logf("bound: %s: %s; refused: %v; the broker takes %.0f %% of a processor; the longest of 5: %v", attack, said, p.Refused, share*100, longest)
	bytes.stop()
	packets.WantUnbroken()
	b.WantNoInvalid()
}

// showStatus runs "scon status".
func showStatus(b *scontest.Bed) {
	b.T.Helper()
	out, err := exec.Command(b.SCON, "status", "--socket", state.Express.Socket(b.StateDir())).CombinedOutput()
	if err != nil {
		b.T.Fatalf("scon status: %v: %s", err, out)
	}
}

// attachAndDetach has the startup service attach a container, and detach it.
func attachAndDetach(b *scontest.Bed) {
	b.T.Helper()
	p := newPod(b, "comes")
	p.ask("ADD")
	p.ask("DEL")
	p.remove()
}

// connectOnce runs a pair of programs that exchange bytes through the pipe.
func connectOnce(b *scontest.Bed) {
	b.T.Helper()
	run := func(node string, args ...string) *exec.Cmd {
		cmd := exec.Command("nsenter", append([]string{"--net=" + b.Node(node), filepath.Join(built, "scon-pipe-load")}, args...)...)
		cmd.Env = append(os.Environ(), "SCON_PIPE_SOCKET="+pipe.Socket(b.StateDir()))
		cmd.Stderr = os.Stderr
		return cmd
	}
	listener := run("c2", "listen", "copier:0.0.0.0:7001", "--seconds", "0.1")
	if err := listener.Start(); err != nil {
		b.T.Fatal(err)
	}
	scontest.Eventually(b.T, "a program connects", func() error {
		return run("c1", "connect", fmt.Sprintf("copier:%v:7001", b.Addr("c2")), "--seconds", "0.1").Run()
	})
	_ = listener.Process.Kill()
	_ = listener.Wait()
}
