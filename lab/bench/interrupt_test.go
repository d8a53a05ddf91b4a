package bench

import (
	"context"
	"testing"
	"time"
)

// interruptAt is a Progress that cancels a run during a step, as Ctrl-C does.
type interruptAt struct {
	after  int // number of steps that may complete
	cancel context.CancelFunc
}

func (i *interruptAt) context(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	i.cancel = cancel
	return ctx
}

func (i *interruptAt) Step(done, _ int, _ string) {
	if done == i.after {
		time.AfterFunc(100*time.Millisecond, i.cancel)
	}
}

func (i *interruptAt) Done() {}
