package pipe_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/internal/pipe/copier"
	"github.com/scon-project/scon/test/bed/nstest"
)

// serve starts a broker. The cleanup waits until no session, name, connection or ring is left,
// and closes the broker.
func serve(t testing.TB, change func(*pipe.Options)) (b *pipe.Broker, socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "p")
	o := pipe.Options{Socket: socket, MemoryLimit: 1 << 30, Copier: copier.New(""), Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	if testing.Verbose() {
		o.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if change != nil {
		change(&o)
	}
	b, err := pipe.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			s := b.Status()
			if s.Processes == 0 && len(s.Connections) == 0 && len(s.Names) == 0 && s.MemoryBytes == 0 {
				break
			}
			if time.Now().After(end) {
				t.Errorf("not released: %+v", s)
				break
			}
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b, socket
}

// command returns the library's test program with a topic.
func command(t testing.TB, socket, topic string, env ...string) *exec.Cmd {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, topic)
	cmd.Env = append([]string{"SCON_PIPE_SOCKET=" + socket}, env...)
	return cmd
}

// runTopic runs a topic in a network namespace and waits for its end.
func runTopic(t *testing.T, ns, socket, topic string, env ...string) {
	t.Helper()
	cmd := command(t, socket, topic, env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	if err := netns.Do(ns, cmd.Start); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%s %v: %v\n%s", topic, env, err, out.String())
	}
}

// A file at the socket's path that is no socket is not removed.
func TestSocketIsAnotherFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p")
	if err := os.WriteFile(path, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := pipe.New(pipe.Options{Socket: path, MemoryLimit: 1 << 20, Copier: copier.New(""), Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		t.Error("a broker listens", b.Close())
	} else if !strings.Contains(err.Error(), "is no socket") {
		t.Error(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "kept" {
		t.Errorf("the file has %q, %v", text, err)
	}
}

// topics of libsconpipe/test that need no further options.
const topics = "connect backlog partial zerocopy loan refresh fullring halfclose peerdeath forks epoll_level epoll_edge options many threads follower files absent"

func TestLibrary(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	for _, engine := range engines(t) {
		for topic := range strings.FieldsSeq(topics) {
			t.Run(engine.String()+"/"+topic, func(t *testing.T) {
				t.Parallel()
				_, socket := serve(t, nil)
				runTopic(t, ns, socket, topic, "ENGINE="+engine.String())
			})
		}
	}
}

// Connections of a process that has many receive from rings that it has in common.
func TestPooled(t *testing.T) {
	t.Parallel()
	needBPF(t)
	ns := nstest.New(t)
	for topic := range strings.FieldsSeq(strings.Replace(topics, " files", " pooled listed", 1)) {
		t.Run(topic, func(t *testing.T) {
			t.Parallel()
			_, socket := serve(t, nil)
			runTopic(t, ns, socket, topic, "ENGINE=bpf", "POOLED=1")
		})
	}
}

// A sender cannot change bytes that the receiver has received by the engine sealed.
func TestAltered(t *testing.T) {
	t.Parallel()
	_, socket := serve(t, nil)
	runTopic(t, nstest.New(t), socket, "altered", "ENGINE=sealed")
}

// manyConnections is the number of connections in the paper's evaluation (PipeDevice).
const manyConnections = 4096

// Many connections exist at the same time. One process has both ends of each, and this
// process is the broker.
func TestManyConnections(t *testing.T) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	if most := uint64(4*manyConnections + 1000); files.Max < most {
		t.Skipf("missing: a limit of %d open files; here it is %d", most, files.Max)
	}
	for _, engine := range engines(t) {
		t.Run(engine.String(), func(t *testing.T) {
			_, socket := serve(t, func(o *pipe.Options) { o.MemoryLimit, o.Share = 4<<30, 100 })
			count := manyConnections
			if engine == pipe.Sealed || engine == pipe.Copier {
				count /= 8 // these take more memory and time per connection
			}
			runTopic(t, nstest.New(t), socket, "many", "ENGINE="+engine.String(), fmt.Sprintf("COUNT=%d", count))
		})
	}
}

// The memory of all rings is bounded, and one container gets half of it at most.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	for _, engine := range ringEngines(t) {
		t.Run(engine.String(), func(t *testing.T) {
			b, socket := serve(t, func(o *pipe.Options) { o.MemoryLimit = 1 << 20 })
			runTopic(t, nstest.New(t), socket, "memory", "ENGINE="+engine.String(), fmt.Sprintf("LIMIT=%d", 512<<10/ringBytes(engine)))
			if n := b.Status().Refused["memory"]; n < 1 {
				t.Errorf("%d refusals counted", n)
			}
		})
	}
}

// A connection whose ends accept the engine unix uses it when no memory for rings is left.
func TestUnixWithoutMemory(t *testing.T) {
	t.Parallel()
	for _, engine := range ringEngines(t) {
		t.Run(engine.String(), func(t *testing.T) {
			b, socket := serve(t, func(o *pipe.Options) { o.MemoryLimit = 1 << 20 })
			runTopic(t, nstest.New(t), socket, "fallback", "ENGINE="+engine.String(), fmt.Sprintf("LIMIT=%d", 512<<10/ringBytes(engine)))
			if n := b.Status().Refused["memory"]; n != 0 {
				t.Errorf("%d refusals counted", n)
			}
		})
	}
}

// A name's message size is that of its last connection that has ended.
func TestMessageSize(t *testing.T) {
	t.Parallel()
	for _, engine := range engines(t) {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			b, socket := serve(t, nil)
			cmd := command(t, socket, "sizes", "ENGINE="+engine.String())
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := netns.Do(nstest.New(t), cmd.Start); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			for _, c := range []struct {
				size  int
				small bool
			}{{0, false}, {100, true}, {4 << 10, true}, {4<<10 + 1, false}, {1, true}, {30000, false}} {
				if c.size > 0 {
					fmt.Fprintln(in, c.size)
				}
				if !lines.Scan() {
					t.Fatal("the program has ended")
				}
				if got := b.SendsSmall(); got != c.small {
					t.Errorf("messages of %d bytes: small: %v", c.size, got)
				}
			}
			in.Close()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Status shows open connections; the broker releases them when the process is killed.
func TestStatus(t *testing.T) {
	t.Parallel()
	for _, engine := range ringEngines(t) {
		t.Run(engine.String(), func(t *testing.T) {
			b, socket := serve(t, nil)
			ns := nstest.New(t)
			cmd := command(t, socket, "hold", "ENGINE="+engine.String())
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := netns.Do(ns, cmd.Start); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
				t.Fatal(err)
			}
			s := b.Status()
			if s.Processes != 1 || len(s.Connections) != 1 || s.MemoryBytes != ringBytes(engine) {
				t.Fatalf("%+v", s)
			}
			c := s.Connections[0]
			inode, err := netns.Inode(ns)
			if err != nil {
				t.Fatal(err)
			}
			if c.Engine != engine.String() || c.Client.SentBytes != 12345 || c.Server.SentBytes != 67 ||
				c.Client.PID != cmd.Process.Pid || c.Client.Command != "pipetest" || c.Client.Netns != inode ||
				c.Client.RingBytes != 64<<10 || !strings.HasPrefix(c.Name, "127.0.0.1:") {
				t.Errorf("%+v", c)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
		})
	}
}
