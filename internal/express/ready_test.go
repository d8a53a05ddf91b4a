package express

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Ready says what keeps packets regular.
func TestReady(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		change func(*heartbeat, *policy)
		want   string // "" for ready
	}{
		"on time":      {func(*heartbeat, *policy) {}, ""},
		"late":         {func(h *heartbeat, _ *policy) { h.last = now.Add(-3 * time.Second) }, "no heartbeat for 3000 ms"},
		"paused":       {func(h *heartbeat, _ *policy) { h.last, h.paused = now.Add(-time.Hour), true }, ""},
		"rules unread": {func(_ *heartbeat, p *policy) { p.err = errors.New("locked") }, "the rules could not be read: locked"},
	} {
		t.Run(name, func(t *testing.T) {
			v := view{hooks: idle(t).hooks, heartbeat: &heartbeat{last: now}, policy: new(policy)}
			c.change(v.heartbeat, v.policy)
			switch err := v.ready(now); {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want %s", err, c.want)
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
