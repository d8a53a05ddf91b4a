package pipe_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/test/bed/nstest"
)

// kills is the number of processes that the test kills while both sides send.
const kills = 24

// Whichever side is killed, at any time, the other side receives the sent bytes, then the
// error, and the broker releases everything.
func TestKills(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	_, socket := serve(t, nil)
	all := engines(t)
	random := rand.New(rand.NewPCG(1, 2))
	var longest time.Duration
	for i := range kills {
		engine := "ENGINE=" + all[i%len(all)].String()
		server := command(t, socket, "stream", engine, "ROLE=server")
		port := begin(t, ns, server)
		client := command(t, socket, "stream", engine, "ROLE=client", "PORT="+port)
		begin(t, ns, client)
		victim, survivor := client, server
		if i/len(all)%2 == 1 {
			victim, survivor = server, client
		}
		time.Sleep(time.Duration(random.IntN(40)) * time.Millisecond) // at any point of the program
		if err := victim.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		_ = victim.Wait()
		if err := survivor.Wait(); err != nil {
			t.Errorf("%s, kill %d: %v", engine, i, err)
		}
		longest = max(longest, time.Since(begun))
	}
	t.Logf("the other side ended after %v at most", longest)
}

// The broker is killed under load: connections of the engines copier and bpf end at both
// sides; others end with their peer at the latest.
func TestBrokerKilled(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	for _, engine := range engines(t) {
		t.Run(engine.String(), func(t *testing.T) {
			broker, socket := startBroker(t)
			server := command(t, socket, "stream", "ENGINE="+engine.String(), "ROLE=server")
			port := begin(t, ns, server)
			client := command(t, socket, "stream", "ENGINE="+engine.String(), "ROLE=client", "PORT="+port)
			begin(t, ns, client)
			awaitProgress(t, client.Process.Pid)
			if err := broker.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = broker.Wait()
			survivors := []*exec.Cmd{server, client}
			if engine == pipe.Sealed || engine == pipe.Unix {
				if engine == pipe.Unix { // with sealed, a failed growth may end the connection first
					awaitProgress(t, client.Process.Pid)
				}
				if err := client.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				survivors = survivors[:1]
			}
			for _, s := range survivors {
				late := time.AfterFunc(20*time.Second, func() { _ = s.Process.Kill() })
				if err := s.Wait(); err != nil {
					t.Error(err)
				}
				late.Stop()
			}
		})
	}
}

// A listening process gets an error when the broker has ended.
func TestListenersOfEndedBroker(t *testing.T) {
	t.Parallel()
	broker, socket := startBroker(t)
	cmd := command(t, socket, "orphans", "ENGINE=sealed")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	begin(t, nstest.New(t), cmd)
	if err := broker.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = broker.Wait()
	startBrokerAt(t, socket)
	if _, err := in.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// Requests to a stopped broker time out, and succeed again when it continues.
func TestBrokerStopped(t *testing.T) {
	t.Parallel()
	whileStopped(t, "silent", pipe.Sealed)
}

// A socket that is closed while the broker connects it leaves nothing behind.
func TestClosedHalfway(t *testing.T) {
	t.Parallel()
	for _, engine := range engines(t) {
		t.Run(engine.String(), func(t *testing.T) { whileStopped(t, "halfway", engine) })
	}
}

// whileStopped stops a broker and runs a topic that continues it.
func whileStopped(t *testing.T, topic string, engine pipe.Engine) {
	t.Helper()
	broker, socket := startBroker(t)
	cmd := command(t, socket, topic, "ENGINE="+engine.String(), fmt.Sprintf("BROKER=%d", broker.Process.Pid))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	begin(t, nstest.New(t), cmd)
	stop(t, broker)
	if _, err := in.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// stop stops a child, and returns when all its threads have stopped.
func stop(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(cmd.Process.Pid, &status, unix.WUNTRACED, nil)
		if err == nil && status.Stopped() {
			return
		}
		if err != unix.EINTR {
			t.Fatalf("stop a process: %v, status %v", err, status)
		}
	}
}

// begin starts a command, and returns its first line.
func begin(t *testing.T, ns string, cmd *exec.Cmd) string {
	t.Helper()
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := netns.Do(ns, cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	said, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(said)
}
