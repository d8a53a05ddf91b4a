package pipe_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/host/nstest"
	"github.com/scon-project/scon/internal/pipe"
)

// peeker is one end of a connection that has moved bytes and then polls for more.
type peeker struct {
	*exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

func startPeeker(t *testing.T, ns, socket string, args ...string) peeker {
	t.Helper()
	l := peeker{Cmd: piped(t, socket, "65536", append([]string{"posixtest", "looker", "10.9.0.2"}, args...)...)}
	l.Stderr = os.Stderr
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
func (l peeker) says(t *testing.T) string {
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
	server := startPeeker(t, two, socket)
	client := startPeeker(t, one, socket, server.says(t))
	for _, l := range []peeker{server, client} {
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
