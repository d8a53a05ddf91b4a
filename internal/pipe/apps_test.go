package pipe_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/netns"
)

// Programs as they are, between two namespaces: what comes is what was sent, and
// it comes by the pipe.
func TestRunApplications(t *testing.T) {
	t.Parallel()
	needBPF(t)
	one, two := neighbours(t)
	dir := t.TempDir()
	content := make([]byte, 24<<20)
	random := rand.NewChaCha8([32]byte{1})
	if _, err := random.Read(content); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), content, 0o644); err != nil {
		t.Fatal(err)
	}
	const times = 8 // by one connection, where it is kept
	sum := fmt.Sprintf("%x", sha256.Sum256(bytes.Repeat(content, times)))
	fetch := func(port int) []string {
		url := fmt.Sprintf("http://10.9.0.2:%d/file ", port)
		return []string{"sh", "-c", "curl --silent --show-error --fail " + strings.Repeat(url, times) + " | sha256sum"}
	}
	for name, app := range map[string]struct {
		port           int
		server, client []string
		want           string // that the client says
		bytes          uint64 // by the pipe, at least
	}{
		"iperf3":      {5201, []string{"iperf3", "-s"}, []string{"iperf3", "-c", "10.9.0.2", "-t", "1"}, "iperf Done.", 32 << 20},
		"iperf3 back": {5202, []string{"iperf3", "-s", "-p", "5202"}, []string{"iperf3", "-c", "10.9.0.2", "-p", "5202", "-R", "-t", "1"}, "iperf Done.", 32 << 20},
		"python3": {
			8003, []string{"python3", "-c", "import http.server, os; os.chdir('" + dir + "'); http.server.test(http.server.SimpleHTTPRequestHandler, http.server.ThreadingHTTPServer, port=8003)"},
			fetch(8003), sum, 16 << 20,
		},
		"redis": {
			6379, []string{"redis-server", "--bind", "10.9.0.2", "--protected-mode", "no", "--save", "", "--dir", dir},
			[]string{"redis-benchmark", "-h", "10.9.0.2", "-n", "4000", "-c", "8", "-d", "4096", "-t", "set,get", "-q"}, "GET: ", 8 << 20,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, socket := serve(t, nil)
			server := piped(t, socket, "65536", app.server...)
			var log bytes.Buffer
			server.Stdout, server.Stderr = &log, &log
			start(t, two, server)
			comes(t, name, func() bool { return answers(one, app.port) })
			// A short transfer may be over before it can go over.
			for end := time.Now().Add(20 * time.Second); b.Status().SentBytes < app.bytes; {
				out, err := output(one, piped(t, socket, "65536", app.client...))
				if err != nil || !bytes.Contains(out, []byte(app.want)) {
					t.Fatalf("%v: %s\n%s", err, out, log.Bytes())
				}
				if time.Now().After(end) {
					t.Fatalf("%d bytes went by the pipe", b.Status().SentBytes)
				}
			}
		})
	}
}

// start starts a command that ends with the test.
func start(t *testing.T, ns string, cmd *exec.Cmd) {
	t.Helper()
	if err := netns.Do(ns, cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		ended := make(chan struct{})
		go func() {
			select {
			case <-ended:
			case <-time.After(10 * time.Second):
				_ = cmd.Process.Kill()
			}
		}()
		_ = cmd.Wait()
		close(ended)
	})
}

func output(ns string, cmd *exec.Cmd) ([]byte, error) {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	if err := netns.Do(ns, cmd.Start); err != nil {
		return nil, err
	}
	late := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	err := cmd.Wait()
	return out.Bytes(), err
}

// answers says whether somebody listens at 10.9.0.2.
func answers(ns string, port int) bool {
	return netns.Do(ns, func() error {
		conn, err := net.Dial("tcp4", fmt.Sprintf("10.9.0.2:%d", port))
		if err == nil {
			conn.Close()
		}
		return err
	}) == nil
}
