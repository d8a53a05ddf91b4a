package pipe_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/test/bed/nstest"
)

// loadEnd is one end of a load that is controlled by its standard input.
type loadEnd struct {
	*exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

// startEnd starts posixtest as an end of a load: looker or duplex.
func startEnd(t *testing.T, ns, socket, load string, port ...string) loadEnd {
	t.Helper()
	return startEndAs(t, ns, socket, nil, load, port...)
}

func startEndAs(t *testing.T, ns, socket string, as *syscall.SysProcAttr, load string, port ...string) loadEnd {
	t.Helper()
	l := loadEnd{Cmd: piped(t, socket, "65536", append([]string{"posixtest", load, "10.9.0.2"}, port...)...)}
	l.Stderr = os.Stderr
	l.SysProcAttr = as
	in, err := l.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := l.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	l.in, l.out = in, bufio.NewScanner(out)
	if err := netns.Do(ns, l.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = l.Process.Kill()
		_ = l.Wait()
	})
	return l
}

// says returns the program's next line.
func (l loadEnd) says(t *testing.T) string {
	t.Helper()
	if !l.out.Scan() {
		t.Fatal("the program has ended")
	}
	return strings.TrimSpace(l.out.Text())
}

// Ends of a connection that the network does not let through any more meet at the
// broker, but get no ring. Their tokens are not seen when the network lets them through
// later.
func TestRunNotPastRules(t *testing.T) {
	t.Parallel()
	needBPF(t)
	one, two := neighbours(t)
	socket := filepath.Join(t.TempDir(), "later")
	server := startEnd(t, two, socket, "looker")
	client := startEnd(t, one, socket, "looker", server.says(t))
	for _, l := range []loadEnd{server, client} {
		if said := l.says(t); said != "moved" {
			t.Fatal(said)
		}
	}
	nstest.Run(t, two, `nft add table ip f
		nft add chain ip f in { type filter hook input priority 0 ; }
		nft add rule ip f in meta l4proto tcp iifname v1 drop`)
	b, _ := serve(t, func(o *pipe.Options) { o.Socket = socket })
	eventually(t, "the end of the proof", func() bool { return b.Status().Refused["network"] > 0 })
	if _, err := client.in.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	came := make(chan string, 1)
	go func() {
		server.out.Scan()
		came <- server.out.Text()
	}()
	select {
	case said := <-came:
		t.Fatalf("bytes that the rules drop have arrived: %s", said)
	case <-time.After(200 * time.Millisecond):
	}
	if hasRing(t, server.Cmd) || hasRing(t, client.Cmd) {
		t.Error("an end has a ring")
	}
	nstest.Run(t, two, "nft delete table ip f")
	if said := <-came; said != "1000 EOF" {
		t.Error(said)
	}
}

// startDuplex starts two programs that send to each other, and check what they receive.
func startDuplex(t *testing.T, one, two, socket string) (client, server loadEnd) {
	t.Helper()
	server = startEnd(t, two, socket, "duplex")
	return startEnd(t, one, socket, "duplex", server.says(t)), server
}

// endDuplex has the client stop sending, then the server. All bytes must arrive.
func endDuplex(t *testing.T, client, server loadEnd, between func()) {
	t.Helper()
	for i, l := range []loadEnd{client, server} {
		if _, err := l.in.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			between()
		}
	}
	var of [2][2]uint64
	for i, l := range []loadEnd{client, server} {
		if _, err := fmt.Sscan(l.says(t), &of[i][0], &of[i][1]); err != nil {
			t.Fatal(err)
		}
	}
	if of[0][0] != of[1][1] || of[1][0] != of[0][1] || of[0][0] == 0 || of[1][0] == 0 {
		t.Errorf("sent and received: %v", of)
	}
}

// awaitMore waits until both ends have sent by a ring since the n-th connection was made.
func awaitMore(t *testing.T, b *pipe.Broker, n uint64) {
	t.Helper()
	eventually(t, "bytes by rings", func() bool {
		s := b.Status()
		return len(s.Connections) == 1 && s.Connections[0].ID == n &&
			s.Connections[0].Client.SentBytes > 1<<20 && s.Connections[0].Server.SentBytes > 1<<20
	})
}

// Rings grow with the stream, and every byte arrives.
func TestRunRingsGrow(t *testing.T) {
	t.Parallel()
	needBPF(t)
	one, two := neighbours(t)
	b, socket := serve(t, nil)
	client, server := startDuplex(t, one, two, socket)
	awaitMore(t, b, 1)
	first := b.Status().MemoryBytes
	eventually(t, "larger rings", func() bool { return b.Status().Grown >= 4 })
	grown := b.Status().SentBytes
	eventually(t, "bytes by them", func() bool { return b.Status().SentBytes > grown+64<<20 })
	if now := b.Status().MemoryBytes; now < first+2*(256<<10)+2*(1<<20) {
		t.Errorf("%d bytes of rings, before %d", now, first)
	}
	endDuplex(t, client, server, func() {})
	if made := b.Status().Made; made != 1 {
		t.Errorf("%d connections", made)
	}
}

// A connection that has lost its rings by a change of rules gets new ones, after pauses
// that double.
func TestRunRegainsRings(t *testing.T) {
	t.Parallel()
	needBPF(t)
	one, two := neighbours(t)
	b, socket := serve(t, nil)
	client, server := startDuplex(t, one, two, socket)
	awaitMore(t, b, 1)
	for i := range 3 {
		begun := time.Now()
		b.Recheck()
		awaitMore(t, b, uint64(i+2))
		if took, pause := time.Since(begun), time.Second<<i; took < pause {
			t.Errorf("change %d: rings again after %v, before the pause of %v", i+1, took, pause)
		}
	}
	endDuplex(t, client, server, func() {
		// Half closed, it can prove nothing: TCP has the rest.
		awaitProgress(t, server.Process.Pid)
		b.Recheck()
		eventually(t, "the end of the rings", func() bool { return len(b.Status().Connections) == 0 })
		awaitProgress(t, server.Process.Pid)
	})
	if made := b.Status().Made; made != 4 {
		t.Errorf("%d connections", made)
	}
}

// A connection that the changed rules drop gets no rings again, until they let it through.
func TestRunLosesRings(t *testing.T) {
	t.Parallel()
	needBPF(t)
	one, two := neighbours(t)
	b, socket := serve(t, nil)
	client, server := startDuplex(t, one, two, socket)
	awaitMore(t, b, 1)
	nstest.Run(t, two, `nft add table ip f
		nft add chain ip f in { type filter hook input priority 0 ; }
		nft add rule ip f in meta l4proto tcp iifname v1 drop`)
	b.Recheck()
	eventually(t, "the end of the rings", func() bool { return len(b.Status().Connections) == 0 })
	byRings := b.Status().SentBytes
	time.Sleep(5 * time.Second)
	if s := b.Status(); s.Made != 1 || s.SentBytes != byRings {
		t.Errorf("%d connections, %d bytes by rings after %d", s.Made, s.SentBytes, byRings)
	}
	nstest.Run(t, two, "nft delete table ip f")
	awaitMore(t, b, 2)
	endDuplex(t, client, server, func() {})
}
