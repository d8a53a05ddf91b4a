package service

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/state"
)

// systemd listens as systemd does, for notifications of this process.
func systemd(t *testing.T) *net.UnixConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return c
}

// next returns the next notification.
func next(t *testing.T, c *net.UnixConn) string {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	n, err := c.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

// The probe notifies systemd while its loops beat, and not while one hangs or the locks
// cannot be taken.
func TestProbe(t *testing.T) {
	hung := NewPulse()
	hung.last.Store(int64(time.Since(began) - pulseLimit - time.Second))
	for name, c := range map[string]struct {
		loops []*Pulse
		err   error
		beats bool
	}{
		"no loop":       {beats: true},
		"loops beat":    {loops: []*Pulse{NewPulse(), NewPulse()}, beats: true},
		"one loop hung": {loops: []*Pulse{NewPulse(), hung}},
		"check fails":   {err: errors.New("hung")},
	} {
		t.Run(name, func(t *testing.T) {
			conn := systemd(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			checks := 0
			w := &Watchdog{every: time.Millisecond}
			w.Probe(ctx, func() error {
				if checks++; checks == 3 {
					cancel()
				}
				return c.err
			}, c.loops...)
			notify("END=1")
			want := "END=1"
			if c.beats {
				want = "WATCHDOG=1"
			}
			if got := next(t, conn); got != want {
				t.Errorf("the first notification is %q, want %q", got, want)
			}
		})
	}
}

// The watchdog is that of the environment.
func TestNewWatchdog(t *testing.T) {
	t.Setenv("WATCHDOG_USEC", "")
	if w := NewWatchdog(); w.every != 0 {
		t.Errorf("without systemd: every %v", w.every)
	}
	t.Setenv("WATCHDOG_USEC", "8000000")
	t.Setenv("WATCHDOG_PID", "")
	if w := NewWatchdog(); w.every != 2*time.Second {
		t.Errorf("every %v, want 2s", w.every)
	}
}

// A reload may take longer than the watchdog's limit, which holds again when it is done.
func TestReloadOutlastsWatchdog(t *testing.T) {
	conn := systemd(t)
	t.Setenv("WATCHDOG_USEC", "8000000")
	t.Setenv("WATCHDOG_PID", "")
	notifyReloading()
	if got, want := next(t, conn), "\nWATCHDOG_USEC=300000000"; !strings.HasPrefix(got, "RELOADING=1\nMONOTONIC_USEC=") || !strings.HasSuffix(got, want) {
		t.Errorf("notified %q, want one that ends with %q", got, want)
	}
	notifyReady()
	if got, want := next(t, conn), "READY=1\nWATCHDOG_USEC=8000000"; got != want {
		t.Errorf("notified %q, want %q", got, want)
	}
}

// Serve replaces a stale socket, records the service, notifies systemd of its start and
// its end, and refuses a socket at which another service answers.
func TestServe(t *testing.T) {
	conn := systemd(t)
	dir := t.TempDir()
	o := Options{StateDir: dir, Socket: state.Express.Socket(dir), Logger: slog.New(slog.DiscardHandler), Version: "test"}
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: o.Socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	s := Server{Service: state.Express, Handler: http.NotFoundHandler(), Failed: func() { t.Error("serving failed") }}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done, err := Serve(ctx, o, s)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := next(t, conn), "READY=1"; got != want {
		t.Errorf("notified %q, want %q", got, want)
	}
	if word, err := state.Read(dir); err != nil || word.Socket != o.Socket || word.Version != "test" {
		t.Errorf("recorded %+v, %v", word, err)
	}
	if _, err := Serve(ctx, o, s); !errors.Is(err, api.ErrInUse) {
		t.Errorf("a second service: %v, want %v", err, api.ErrInUse)
	}
	cancel()
	<-done
	if got := next(t, conn); got != stopping {
		t.Errorf("notified %q, want %q", got, stopping)
	}
}

// A service that is about to end begins nothing again: nobody would end it then.
func TestReloadWhileEnding(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began := make(chan struct{})
	o := Options{
		StateDir: dir, Socket: state.Express.Socket(dir), Logger: slog.New(slog.DiscardHandler),
		Reload: func() (func(), error) {
			cancel()
			return func() { close(began) }, nil
		},
	}
	done, err := Serve(ctx, o, Server{Service: state.Express, Handler: http.NotFoundHandler(), Failed: func() { t.Error("serving failed") }})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = api.Dial(o.Socket).Reload(false) // its answer may be cut off
	<-done
	select {
	case <-began:
		t.Error("it began again")
	case <-time.After(100 * time.Millisecond):
	}
}
