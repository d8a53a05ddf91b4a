package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/test/bed/lab"
)

// fakeDaemon answers like a daemon whose container sent 90 packets express and 10
// regular. In a namespace named "broken" it exits with an error, in one named
// "stubborn" it never becomes active.
func fakeDaemon(args []string) int {
	flags := flag.NewFlagSet("daemon", flag.ContinueOnError)
	netns := flags.String("netns", "", "")
	socket := flags.String("socket", "", "")
	config := flags.String("config", "", "")
	flags.String("state-dir", "", "")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if _, err := os.Stat(*config); err != nil || *netns == "broken" {
		fmt.Fprintln(os.Stderr, "no bridge here")
		return 1
	}
	l, err := api.Listen(*socket, "")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	backend := fakeBackend{status: api.Status{
		State:   api.StateActive,
		Reasons: map[string]uint64{"not_ours": 4},
		Hooks:   []api.Hook{{Dev: "eth0"}, {Dev: "veth1"}},
		Containers: []api.Container{
			{Dev: "veth2", ExpressPackets: 1000},
			{Dev: "veth1", ExpressPackets: 90, RegularPackets: 10, Reasons: map[string]uint64{"lease": 10}},
		},
	}}
	if *netns == "stubborn" {
		backend.status.State = api.StateInert
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := api.Serve(ctx, l, api.Handler(backend, http.NotFoundHandler()), slog.New(slog.DiscardHandler)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// fakeBackend implements only the status request.
type fakeBackend struct {
	api.Backend
	status api.Status
}

func (b fakeBackend) Status() (api.Status, error) { return b.status, nil }

func TestDaemonIsStartedReadAndStopped(t *testing.T) {
	d, err := startDaemonAt(t.Context(), "some", lab.Port(1), lab.Uplink, "")
	if err != nil {
		t.Fatal(err)
	}
	var r reading
	if err := d.read(&r); err != nil {
		t.Error(err)
	}
	if r.express != 90 || r.regular != 10 || r.reasons["lease"] != 10 || r.reasons["not_ours"] != 4 {
		t.Errorf("read %+v, want what the lab's port counts and the uplink's reasons", r)
	}
	if r.daemonTime <= 0 {
		t.Errorf("processor time %v", r.daemonTime)
	}
	if err := d.stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(d.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory is left: %v", err)
	}
}

func TestDaemonThatDoesNotStart(t *testing.T) {
	_, err := startDaemonAt(t.Context(), "broken", lab.Port(1), lab.Uplink, "")
	if err == nil || !strings.Contains(err.Error(), "no bridge here") {
		t.Errorf("error %v, want the daemon's error output", err)
	}
}

func TestDaemonThatIsNeverActiveIsStopped(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := startDaemonAt(ctx, "stubborn", lab.Port(1), lab.Uplink, "")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the timeout", err)
	}
	if strings.Contains(fmt.Sprint(err), "killed") {
		t.Errorf("the daemon was not stopped: %v", err)
	}
}

func TestActiveAt(t *testing.T) {
	both := []api.Hook{{Dev: "eth0"}, {Dev: "veth1"}}
	for _, c := range []struct {
		name   string
		status api.Status
		want   bool
	}{
		{"active", api.Status{State: api.StateActive, Hooks: both}, true},
		{"paused", api.Status{State: api.StatePaused, Hooks: both}, false},
		{"port not hooked yet", api.Status{State: api.StateActive, Hooks: both[:1]}, false},
	} {
		if got := activeAt(c.status, "eth0", "veth1"); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestProcessTimeIsOfTheWholeProcess(t *testing.T) {
	before, err := processTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for begun := time.Now(); time.Since(begun) < 20*time.Millisecond; {
	}
	after, err := processTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if after <= before {
		t.Errorf("processor time went from %v to %v", before, after)
	}
	if _, err := processTime(1 << 22); err == nil { // larger than any pid
		t.Error("no error for a process that does not exist")
	}
}
