package api_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
)

// calls are all calls of a client.
func calls(c *api.Client) map[string]func() error {
	return map[string]func() error{
		"status":  func() error { _, err := c.Status(); return err },
		"process": func() error { _, err := c.Process(); return err },
		"flows":   func() error { _, err := c.Flows(""); return err },
		"explain": func() error { _, err := c.Explain("web"); return err },
		"web":     func() error { _, err := c.Web(); return err },
		"live":    func() error { _, err := c.Live(context.Background(), nil); return err },
		"flush":   func() error { _, err := c.Flush(""); return err },
		"pause":   func() error { return c.Pause("") },
		"resume":  func() error { return c.Resume("") },
		"metrics": func() error { return c.Metrics(io.Discard) },
		"stop":    c.Stop,
	}
}

// Every call to a process that accepts no connection fails, and says who it is and what to
// do; the kernel accepts connections for it, until their queue is full.
func TestHangs(t *testing.T) {
	t.Parallel()
	for name, backlog := range map[string]int{"accepts nothing": 128, "full queue": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "scon.sock")
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, backlog)); err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprintf("the daemon (pid %d) at %s does not answer: it hangs; end it with 'kill -9 %[1]d'", os.Getpid(), path)
			if backlog == 0 {
				waiting, err := net.Dial("unix", path)
				if err != nil {
					t.Fatal(err)
				}
				defer waiting.Close()
				want = fmt.Sprintf("the daemon at %s does not answer: it hangs; end it", path)
			}
			var asked sync.WaitGroup
			defer asked.Wait()
			for name, call := range calls(api.Dial(path)) {
				asked.Go(func() {
					if err := call(); !errors.Is(err, api.ErrHangs) || !strings.Contains(err.Error(), want) {
						t.Errorf("%s: %v, want %q", name, err, want)
					}
				})
			}
		})
	}
}

// slow is a backend whose status takes longer than a service that hangs is given.
type slow struct {
	backend
	asked <-chan time.Time
}

func (s *slow) Status() (api.Status, error) {
	<-s.asked
	return s.backend.Status()
}

// A service that has much to do does not hang.
func TestSlowAnswer(t *testing.T) {
	t.Parallel()
	c := api.Dial(serve(t, &slow{asked: time.After(3500 * time.Millisecond)}, ""))
	if s, err := c.Status(); err != nil || s.PID != 7 {
		t.Errorf("pid %d, %v", s.PID, err)
	}
}
