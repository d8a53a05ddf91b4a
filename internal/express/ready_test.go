package express

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scon-project/scon/internal/api"
)

// Ready says what keeps packets regular, and the state is that of the programs.
func TestReady(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		change func(*heartbeat, *policy)
		want   string // "" for ready
		state  string
	}{
		"on time": {func(*heartbeat, *policy) {}, "", api.StateActive},
		"late":    {func(h *heartbeat, _ *policy) { h.last = now.Add(-3 * time.Second) }, "no heartbeat for 3000 ms", api.StateInert},
		"paused":  {func(h *heartbeat, _ *policy) { h.last, h.paused = now.Add(-time.Hour), true }, "", api.StatePaused},
		"never":   {func(h *heartbeat, _ *policy) { h.last = time.Time{} }, "no heartbeat for 60000 ms", api.StateInert},
		"resumed while rules are being read": {func(h *heartbeat, _ *policy) {
			h.last, h.paused, h.rules.announced = now.Add(-time.Hour), true, 1
			if err := h.setPaused(false); err != nil {
				t.Fatal(err)
			}
		}, "", api.StateActive},
		"rules cannot be read": {
			func(_ *heartbeat, p *policy) { p.err = errors.New("locked") }, "the rules could not be read: locked", api.StateInert,
		},
		"rules are being read": {func(h *heartbeat, _ *policy) { h.rules.announced++ }, "", api.StateActive},
		"rules are unread for long": {
			func(h *heartbeat, _ *policy) { h.rules.announced, h.last = 1, now.Add(-3*time.Second) },
			"no heartbeat for 3000 ms, as changed rules are not known yet", api.StateInert,
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := view{hooks: idle(t).hooks, heartbeat: &heartbeat{dp: new(beats), last: now}, policy: new(policy), started: now.Add(-time.Minute)}
			c.change(v.heartbeat, v.policy)
			switch err := v.ready(now); {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want %s", err, c.want)
			}
			if got := v.state(now); got != c.state {
				t.Errorf("state %s, want %s", got, c.state)
			}
		})
	}
}

// Nobody waits for a loop that hangs, or has ended, with a call that it has taken.
func TestCallTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		d := &Daemon{calls: make(chan func()), ctx: ctx}
		go func() { <-d.calls }()
		if err := (backend{d: d, ctx: ctx}).Ready(); err == nil || !strings.Contains(err.Error(), "the loop has not answered") {
			t.Errorf("ready: %v", err)
		}
		go func() {
			<-d.calls
			<-d.calls
			end()
		}()
		d.naming.Go(func() { d.atPort("veth0", nil) })
		if _, err := (backend{d: d, ctx: ctx}).Status(); err == nil {
			t.Error("no error of a loop that has ended")
		}
		d.naming.Wait()
	})
}

// Nobody waits for a loop that hangs.
func TestLoopHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backend{d: &Daemon{calls: make(chan func())}, ctx: t.Context()}
		if err := b.Ready(); err == nil || !strings.Contains(err.Error(), "the loop has not answered") {
			t.Errorf("ready: %v", err)
		}
	})
	if err := healthy(loopLimit + time.Second); err == nil || !strings.Contains(err.Error(), "31 s") {
		t.Errorf("healthy: %v", err)
	}
}
