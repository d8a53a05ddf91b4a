package pipe_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/host/sysctl"
	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/internal/pipe/copier"
	"github.com/scon-project/scon/test/bed/nstest"
)

// preload builds the libraries that "scon run" preloads, and posixtest, which prints a table of
// the sockets' behaviour.
var preload = sync.OnceValues(func() (dir string, err error) { return buildRun("run") })

// muslTest builds posixtest with musl.
var muslTest = sync.OnceValues(func() (dir string, err error) {
	dir = filepath.Join(scratch, "musl")
	if err := makeIn("../../test/posix", dir, filepath.Join(dir, "posixtest"), filepath.Join(dir, "posixtest.own"), "CC=musl-gcc"); err != nil {
		return "", err
	}
	return dir, makeIn("../../test/posix", dir, "all")
})

// buildRun builds what preload does, with more arguments for make.
func buildRun(name string, args ...string) (dir string, err error) {
	dir = filepath.Join(scratch, name)
	for _, from := range []string{"../../libsconpipe", "../../test/posix"} {
		if err := makeIn(from, dir, append(args, "all")...); err != nil {
			return "", err
		}
	}
	return dir, nil
}

func makeIn(from, dir string, args ...string) error {
	build := exec.Command("make", append([]string{"-j2", "-C", from, "OUT=" + dir}, args...)...)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", from, err, out)
	}
	return nil
}

// piped returns a command as "scon run" runs it. Its connections attach after so many bytes.
func piped(t testing.TB, socket, after string, argv ...string) *exec.Cmd {
	t.Helper()
	dir, err := preload()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	if argv[0] == "posixtest" {
		cmd = exec.Command(filepath.Join(dir, "posixtest"), argv[1:]...)
	}
	cmd.Env = append(os.Environ(), "SCON_PIPE_SOCKET="+socket, "SCON_RUN_AFTER="+after, "LD_PRELOAD="+filepath.Join(dir, "libsconrun.so"))
	return cmd
}

// pipedMusl is piped for a program that uses musl. Its shell is BusyBox, as in Alpine's images:
// no library of musl's can be preloaded into this system's.
func pipedMusl(t testing.TB, socket, after string, argv ...string) *exec.Cmd {
	t.Helper()
	cmd := piped(t, socket, after, argv...)
	last := len(cmd.Env) - 1
	preload := strings.Replace(cmd.Env[last], "libsconrun.so", "libsconrun.musl.so", 1)
	script := `mkdir "$0" && busybox --install -s "$0" && mount --bind "$(command -v busybox)" "$(readlink --canonicalize /bin/sh)" && exec "$@"`
	applets := filepath.Join(t.TempDir(), "bin")
	shell := exec.Command("unshare", slices.Concat([]string{"--mount", "sh", "-c", script, applets, "/usr/bin/env", "PATH=" + applets, preload}, cmd.Args)...)
	shell.Env = cmd.Env[:last]
	return shell
}

// Stream sockets behave the same by the pipe as by TCP.
func TestRunIsTCP(t *testing.T) {
	t.Parallel()
	needBPF(t)
	testIsTCP(t, func(socket string) *exec.Cmd { return piped(t, socket, "0", "posixtest") })
}

// So they do for programs that use musl.
func TestRunIsTCPMusl(t *testing.T) {
	t.Parallel()
	needBPF(t)
	dir, err := muslTest()
	if err != nil {
		t.Fatal(err)
	}
	testIsTCP(t, func(socket string) *exec.Cmd { return pipedMusl(t, socket, "0", filepath.Join(dir, "posixtest")) })
}

// So they do when the connections of a process receive from its pool, of which it has to get
// them before others do: in these cases; SCON_LONG=1: in all.
func TestRunIsTCPPooled(t *testing.T) {
	t.Parallel()
	needBPF(t)
	names := strings.Fields("stream duplex full sendfile level edge dup fork unread cancel stdio exec execclear execstatic spawn shell rights prefork forkserver forkthreads shortread splicers bothfull forkstream")
	all := posixCases(t)
	if os.Getenv("SCON_LONG") != "" {
		names = all
	}
	for _, name := range names {
		if !slices.Contains(all, name) {
			t.Errorf("posixtest has no case %s", name)
		}
		b, socket := serve(t, nil)
		b.PoolAlways()
		sameTable(t, func() *exec.Cmd { return piped(t, socket, "0", "posixtest", name) })
	}
}

func testIsTCP(t *testing.T, test func(socket string) *exec.Cmd) {
	t.Helper()
	b, socket := serve(t, nil)
	sameTable(t, func() *exec.Cmd { return test(socket) })
	wentByPipe(t, b)
}

// sameTable fails unless posixtest prints by the pipe what it prints by TCP.
func sameTable(t *testing.T, test func() *exec.Cmd) {
	t.Helper()
	table := func(ns string, cmd *exec.Cmd) string {
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		// Its children end with it, also if it fails.
		cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
		cmd.WaitDelay = time.Second
		err := netns.Do(ns, cmd.Start)
		if err == nil {
			err = cmd.Wait()
			_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		}
		if err != nil {
			t.Errorf("%v\n%s", err, out.String())
		}
		return out.String()
	}
	plain, preloaded := test(), test()
	plain.Env = nil
	plain.Args = slices.DeleteFunc(plain.Args, func(arg string) bool { return strings.HasPrefix(arg, "LD_PRELOAD=") })
	var byTCP string
	ns, other := nstest.New(t), nstest.New(t)
	var both sync.WaitGroup
	both.Go(func() { byTCP = table(other, plain) })
	byPipe := table(ns, preloaded)
	both.Wait()
	want, got := strings.Split(byTCP, "\n"), strings.Split(byPipe, "\n")
	for i := range max(len(want), len(got)) {
		if i >= len(want) || i >= len(got) || want[i] != got[i] {
			around := func(lines []string) string {
				return strings.Join(lines[max(0, min(i, len(lines))-6):min(i+3, len(lines))], "\n")
			}
			t.Fatalf("line %d by TCP:\n%s\nby the pipe:\n%s", i+1, around(want), around(got))
		}
	}
}

// A stream of octets that may each begin the token that is looked for goes on: what is left
// unread because of that closes TCP's window.
func TestRunMarkInStream(t *testing.T) {
	t.Parallel()
	needBPF(t)
	b, socket := serve(t, nil)
	b.MarkWithZero()
	ns := nstest.New(t)
	for range 4 {
		cmd := piped(t, socket, "0", "posixtest", "shortread") // sends zeros
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, time.Second
		if err := netns.Do(ns, cmd.Run); err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
	}
}

// wentByPipe fails unless the pipe carried posixtest's connections.
func wentByPipe(t *testing.T, b *pipe.Broker) {
	t.Helper()
	if s := b.Status(); s.Made < 50 || s.SentBytes < 10<<20 {
		t.Errorf("the pipe carried only %d connections, %d bytes", s.Made, s.SentBytes)
	}
}

// posixCases returns the cases of posixtest.
func posixCases(t *testing.T) []string {
	t.Helper()
	dir, err := preload()
	if err != nil {
		t.Fatal(err)
	}
	names, err := exec.Command(filepath.Join(dir, "posixtest"), "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(names))
}

// pairUnderLoad is a server and a client under load in two namespaces.
type pairUnderLoad struct {
	server, client *exec.Cmd
	out            [2]*bufio.Reader
}

func startLoad(t *testing.T, one, two, socket, client string) *pairUnderLoad {
	t.Helper()
	l := &pairUnderLoad{server: piped(t, socket, "65536", "posixtest", "server", "10.9.0.2")}
	start := func(i int, ns string, cmd *exec.Cmd) {
		r, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stderr = os.Stderr
		l.out[i] = bufio.NewReader(r)
		if err := netns.Do(ns, cmd.Start); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	start(0, two, l.server)
	port, err := l.out[0].ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	l.client = piped(t, socket, "65536", "posixtest", client, "10.9.0.2", strings.TrimSpace(port))
	start(1, one, l.client)
	if _, err := l.out[1].ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return l
}

// end returns the last line of a side.
func (l *pairUnderLoad) end(t *testing.T, i int) string {
	t.Helper()
	line := make(chan string, 1)
	go func() {
		s, err := l.out[i].ReadString('\n')
		if err != nil {
			s = err.Error()
		}
		line <- strings.TrimSpace(s)
	}()
	select {
	case s := <-line:
		return s
	case <-time.After(20 * time.Second):
		_ = []*exec.Cmd{l.server, l.client}[i].Process.Kill()
		<-line
		return "the program hangs"
	}
}

// Whichever side is killed, at any time, the other side reads all bytes that were sent, in
// order, and then EOF or the error that TCP reports.
func TestRunKilled(t *testing.T) {
	t.Parallel()
	needBPF(t)
	b, socket := serve(t, nil)
	one, two := neighbours(t)
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	var longest time.Duration
	for i := range 16 {
		l := startLoad(t, one, two, socket, []string{"client", "poller"}[i/2%2])
		time.Sleep(time.Duration(random.IntN(150)) * time.Millisecond)
		victim, left := []*exec.Cmd{l.server, l.client}[i%2], 1-i%2
		if err := victim.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		killed := time.Now()
		got := l.end(t, left)
		longest = max(longest, time.Since(killed))
		if !strings.HasSuffix(got, " EOF") && !strings.HasSuffix(got, " ECONNRESET") && !strings.HasSuffix(got, " EPIPE") {
			t.Errorf("seed %d, round %d: %s", seed, i, got)
		}
	}
	t.Logf("the other side ended after %v at most", longest)
	if s := b.Status(); s.Made == 0 {
		t.Error("no connection was attached")
	}
}

// usedBy is the CPU time of a process: kernel/time/posix-cpu-timers.c has its clock.
func usedBy(pid int) (time.Duration, error) {
	const sched = 2
	var used unix.Timespec
	err := unix.ClockGettime(^int32(pid)<<3|sched, &used)
	return time.Duration(used.Nano()), err
}

// awaitProgress waits until a process has used more CPU time: it does not hang.
func awaitProgress(t *testing.T, pid int) {
	t.Helper()
	var begin time.Duration
	eventually(t, "progress of the stream", func() bool {
		used, err := usedBy(pid)
		if err != nil {
			t.Fatal(err)
		}
		if begin == 0 {
			begin = used
		}
		return used-begin > 30*time.Millisecond
	})
}

// Connections survive the broker, whether they receive from rings of their own or of a pool.
func TestRunBrokerKilled(t *testing.T) {
	t.Parallel()
	needBPF(t)
	one, two := neighbours(t)
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	for i := range 16 {
		socket := filepath.Join(t.TempDir(), "p")
		broker := startBrokerAt(t, socket, "env", fmt.Sprint("SCON_TEST_POOLED=", i/2%2))
		l := startLoad(t, one, two, socket, []string{"client", "poller"}[i%2])
		time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
		if err := broker.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = broker.Wait()
		awaitProgress(t, l.client.Process.Pid)
		if err := l.client.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if got := l.end(t, 0); !strings.HasSuffix(got, " EOF") && !strings.HasSuffix(got, " ECONNRESET") {
			t.Errorf("seed %d, round %d: %s", seed, i, got)
		}
	}
}

// awaitRing waits until a process has rings mapped, or has none.
func awaitRing(t *testing.T, cmd *exec.Cmd, want bool) {
	t.Helper()
	eventually(t, fmt.Sprintf("rings: %v", want), func() bool { return hasRing(t, cmd) == want })
}

func hasRing(t *testing.T, cmd *exec.Cmd) bool {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(maps, []byte("bpf-map"))
}

// finish kills the client. The server receives the sent bytes, and then the end.
func (l *pairUnderLoad) finish(t *testing.T) {
	t.Helper()
	if err := l.client.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if got := l.end(t, 0); !strings.HasSuffix(got, " EOF") && !strings.HasSuffix(got, " ECONNRESET") {
		t.Error(got)
	}
}

// A stopped broker does not delay programs: attached connections continue, others use TCP and
// end as TCP does. When the broker continues, connections attach again.
func TestRunBrokerStopped(t *testing.T) {
	t.Parallel()
	needBPF(t)
	one, two := neighbours(t)
	broker, socket := startBroker(t)
	before := startLoad(t, one, two, socket, "client")
	awaitRing(t, before.client, true)

	// This server serves several connections, and has used the broker before.
	server := piped(t, socket, "65536", "posixtest", "victim", "10.9.0.2")
	in, err := server.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	port := begin(t, two, server)
	client := func() *exec.Cmd {
		cmd := piped(t, socket, "65536", "posixtest", "client", "10.9.0.2", port)
		begin(t, one, cmd)
		return cmd
	}
	kill := func(cmd *exec.Cmd) {
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	first := client()
	awaitRing(t, server, true)
	kill(first)
	awaitRing(t, server, false)

	stop(t, broker)
	awaitProgress(t, before.client.Process.Pid)
	during := startLoad(t, one, two, socket, "poller")
	awaitProgress(t, during.server.Process.Pid)
	second := client()
	awaitProgress(t, server.Process.Pid)
	for _, cmd := range []*exec.Cmd{during.client, during.server, second, server} {
		if hasRing(t, cmd) {
			t.Error("a connection was attached without the broker")
		}
	}
	during.finish(t)
	kill(second)

	if err := broker.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	awaitProgress(t, before.client.Process.Pid)
	before.finish(t)
	after := startLoad(t, one, two, socket, "client")
	awaitRing(t, after.client, true)
	awaitRing(t, after.server, true)
	after.finish(t)
	eventually(t, "a ring of a process that had none", func() bool {
		next := client()
		defer kill(next)
		for end := time.Now().Add(time.Second); time.Now().Before(end) && !hasRing(t, server); {
			time.Sleep(time.Millisecond)
		}
		return hasRing(t, server)
	})
}

// A connection whose receive buffer has no room for a token does not wait for one. The kernel
// makes room in a buffer whose size the program has not set, as far as tcp_rmem allows.
func TestRunSmallBuffer(t *testing.T) {
	t.Parallel()
	needBPF(t)
	for name, c := range map[string]struct {
		rmem, test string
		moves      bool
	}{
		"of the program":    {"4096 131072 6291456", "smallbuf", false},
		"of the system":     {"4096 16384 6291456", "stream", true},
		"that stays small":  {"4096 8192 16384", "stream", false},
		"that hardly grows": {"4096 8192 65536", "stream", true},
	} {
		t.Run(name, func(t *testing.T) {
			b, socket := serve(t, nil)
			ns := nstest.New(t)
			// On a busy machine a proof may take longer than a connection waits for it.
			for tries := 0; tries < 10 && b.Status().Made == 0 && (tries == 0 || c.moves); tries++ {
				cmd := piped(t, socket, "0", "posixtest", c.test)
				if err := netns.Do(ns, func() error {
					return errors.Join(sysctl.Set([]sysctl.Setting{{Name: "net/ipv4/tcp_rmem", Value: c.rmem}}), cmd.Run())
				}); err != nil {
					t.Fatal(err)
				}
			}
			s := b.Status()
			if n := s.Refused["network"]; n > 0 {
				t.Errorf("%d tokens have not arrived", n)
			}
			if moves := s.Made > 0; moves != c.moves {
				t.Errorf("moves: %v, want %v", moves, c.moves)
			}
		})
	}
}

// A signal that a program handles while the library waits for the broker ends the call that waits,
// as with TCP: it returns what it has transferred, or EINTR.
func TestRunSignal(t *testing.T) {
	t.Parallel()
	needBPF(t)
	broker, socket := startBroker(t)
	cmd := piped(t, socket, "0", "posixtest", "stopped", strconv.Itoa(broker.Process.Pid))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := netns.Do(nstest.New(t), cmd.Run); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for line := range strings.Lines(out.String()) {
		if line != "stopped: waits: -1 EINTR\n" && line != "stopped: a part\n" {
			t.Error(line)
		}
	}
}

// Without a broker, or if it refuses, programs stay on TCP.
func TestRunStaysTCP(t *testing.T) {
	t.Parallel()
	needBPF(t)
	one, two := neighbours(t)
	for name, change := range map[string]func(*pipe.Options){
		"no broker":  nil,
		"allow list": func(o *pipe.Options) { o.Allow = []netip.Prefix{netip.MustParsePrefix("10.9.0.2/32")} },
		"no memory":  func(o *pipe.Options) { o.MemoryLimit = 1 << 10 },
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "none")
			var b *pipe.Broker
			if change != nil {
				b, socket = serve(t, change)
			}
			l := startLoad(t, one, two, socket, "client")
			awaitProgress(t, l.client.Process.Pid)
			if b != nil {
				eventually(t, "a refusal", func() bool { return len(b.Status().Refused) == 1 })
				if s := b.Status(); s.Made != 0 {
					t.Errorf("%+v", s)
				}
			}
			if err := l.client.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if got := l.end(t, 0); !strings.HasSuffix(got, " EOF") && !strings.HasSuffix(got, " ECONNRESET") {
				t.Error(got)
			}
		})
	}
}

// startBroker starts a broker in a process of its own, which can be killed.
func startBroker(t testing.TB) (broker *exec.Cmd, socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "p")
	return startBrokerAt(t, socket), socket
}

// startBrokerAt starts a broker with a socket; by: a command that runs it.
func startBrokerAt(t testing.TB, socket string, by ...string) *exec.Cmd {
	t.Helper()
	args := append(by, os.Args[0])
	broker := exec.Command(args[0], args[1:]...)
	broker.Stderr = os.Stderr
	broker.Env = append(os.Environ(), "SCON_TEST_BROKER="+socket)
	if err := broker.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = broker.Process.Kill()
		_ = broker.Wait()
	})
	eventually(t, "the broker", func() bool {
		conn, err := net.Dial("unixpacket", socket)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return broker
}

// serveBroker runs a broker in this process, confined.
func serveBroker(socket string) int {
	err := confine()
	if err == nil {
		var b *pipe.Broker
		b, err = pipe.New(pipe.Options{Socket: socket, MemoryLimit: 1 << 28, Copier: copier.New(""), Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))})
		if os.Getenv("SCON_TEST_POOLED") == "1" && err == nil {
			b.PoolAlways()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	select {}
}
