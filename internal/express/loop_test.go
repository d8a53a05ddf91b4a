package express

import (
	"context"
	"testing"

	"github.com/scon-project/scon/internal/express/composer"
	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/hooks"
	"github.com/scon-project/scon/internal/host/changes"
)

// idle is a daemon with nothing to do.
func idle(t *testing.T) *Daemon {
	t.Helper()
	h, err := hooks.New(hooks.Options{Datapath: new(datapath.Datapath)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return &Daemon{hooks: h, tcp: composer.NewTCP(nil, nil, nil)}
}

// The loop ends with an error when any of its sources ends.
func TestSourceEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*sources){
		"changes": func(s *sources) {
			c := make(chan changes.Event)
			close(c)
			s.changes = c
		},
		"destroyed": func(s *sources) {
			c := make(chan conntrack.Destroyed)
			close(c)
			s.destroyed = c
		},
		"events": func(s *sources) {
			c := make(chan datapath.Event)
			close(c)
			s.events = c
		},
	} {
		t.Run(name, func(t *testing.T) {
			var s sources
			end(&s)
			if err := idle(t).loop(t.Context(), s); err == nil {
				t.Error("no error")
			}
			ctx, stop := context.WithCancel(t.Context())
			stop()
			if err := idle(t).loop(ctx, s); err != nil {
				t.Errorf("at the daemon's own end: %v", err)
			}
		})
	}
}
