package docker

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestContainerRestart restarts a web server under load, then starts another
// container with its address and published port.
func TestContainerRestart(t *testing.T) {
	e := Start(t)
	e.Docker(t, "network", "create", "--subnet", "172.30.0.0/24", "blue")
	place := []string{"--network", "blue", "--ip", "172.30.0.10"}
	withoutAndWith(t, e.Machine, func(t *testing.T, s *SCON) {
		one := e.RunNginx(t, "one", folderWith(t, "one"), place...)
		s.waitHooked(t, "one")
		l := startVisits(t, e)
		s.expectVisits(t, e, l, "one")

		one.Stop(t)
		s.waitGone(t, "one")

		e.Docker(t, "start", "one")
		s.waitHooked(t, "one")
		s.expectVisits(t, e, l, "one")

		e.Docker(t, "restart", "--time", "1", "one")
		s.waitHooked(t, "one")
		s.expectVisits(t, e, l, "one")

		one.Remove(t)
		s.waitGone(t, "one")
		l.banned.Store("one") // an answer of the old container is wrong from now on

		two := e.RunNginx(t, "two", folderWith(t, "two"), place...)
		if two.Address != one.Address {
			t.Fatalf("container two has address %s, want %s as one had", two.Address, one.Address)
		}
		s.waitHooked(t, "two")
		s.expectVisits(t, e, l, "two")
		if s != nil {
			for _, f := range s.Flows(t) {
				if f.Container != "two" {
					t.Errorf("entry of another container: %+v", f)
				}
			}
		}
	})
}

// folderWith returns a folder with a page "name" that contains a name.
func folderWith(t *testing.T, name string) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "name"), []byte(name), 0o644); err != nil {
		t.Fatal(err)
	}
	return folder
}

// visits is load that tolerates failures: clients that continuously request a web
// server's name, over persistent connections.
type visits struct {
	stopping context.CancelFunc
	visitors sync.WaitGroup
	answers  sync.Map     // name to *atomic.Uint64
	banned   atomic.Value // string: a name that must not be answered any more
}

func startVisits(t *testing.T, e *Engine) *visits {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	v := &visits{stopping: cancel}
	v.banned.Store("")
	for range 4 {
		c := newClient(t, e, 8080)
		c.http.Timeout = time.Second // the container may stop during a request
		v.visitors.Go(func() { v.visit(t, ctx, c) })
	}
	t.Cleanup(func() {
		v.stopping()
		v.visitors.Wait()
	})
	return v
}

func (v *visits) visit(t *testing.T, ctx context.Context, c *client) {
	for ctx.Err() == nil {
		banned := v.banned.Load()
		if name, err := c.fetch("name"); err != nil {
			c.http.Transport.(*http.Transport).CloseIdleConnections()
			time.Sleep(5 * time.Millisecond)
		} else {
			if string(name) == banned {
				t.Errorf("an answer of %q, which is removed", name)
			}
			n, _ := v.answers.LoadOrStore(string(name), new(atomic.Uint64))
			n.(*atomic.Uint64).Add(1)
		}
		time.Sleep(time.Millisecond)
	}
}

// count returns the number of answers with a name.
func (v *visits) count(name string) uint64 {
	n, ok := v.answers.Load(name)
	if !ok {
		return 0
	}
	return n.(*atomic.Uint64).Load()
}

// expectVisits waits until a container answers the load, and until another
// client's connection to it is express.
func (s *SCON) expectVisits(t *testing.T, e *Engine, v *visits, name string) {
	t.Helper()
	begin := v.count(name)
	eventually(t, "answers of "+name, func() error {
		if n := v.count(name) - begin; n < 100 {
			return fmt.Errorf("%d answers", n)
		}
		return nil
	})
	c := newClient(t, e, 8080)
	visit := func() {
		if got, err := c.fetch("name"); err != nil || string(got) != name {
			t.Fatalf("get name: %q, %v; want %q", got, err, name)
		}
	}
	visit()
	s.waitExpress(t, from(name, "tcp", c.port()), visit)
}
