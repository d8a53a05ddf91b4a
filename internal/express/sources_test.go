package express

import (
	"context"
	"testing"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/host/changes"
)

// The loop ends with an error when it can no longer hear of something, whatever
// that is.
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
			if err := (&Daemon{resetDue: stopped(), lookDue: stopped()}).loop(t.Context(), s); err == nil {
				t.Error("no error")
			}
			ctx, stop := context.WithCancel(t.Context())
			stop()
			if err := (&Daemon{resetDue: stopped(), lookDue: stopped()}).loop(ctx, s); err != nil {
				t.Errorf("at the daemon's own end: %v", err)
			}
		})
	}
}
