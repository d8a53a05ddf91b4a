package main

import (
	"io"
	"os"
	"time"

	"github.com/scon-project/scon/internal/lab/bench"
)

const (
	// standstill is how long work may make no progress until it is given up.
	standstill = time.Minute
	// patience is how long work may take until its progress is shown.
	patience = 2 * time.Second
	// pollInterval is how often it is looked at.
	pollInterval = 20 * time.Millisecond
)

// pace follows work that may take long, but must not stand still.
type pace struct {
	what  string
	done  func() (done, total int) // total 0: unknown
	bar   bench.Progress           // nil: nothing is shown
	began time.Time
	moved time.Time // when done changed
	last  int
}

func newPace(out io.Writer, what string, done func() (done, total int)) *pace {
	p := &pace{what: what, done: done, began: time.Now(), moved: time.Now()}
	if f, ok := out.(*os.File); ok {
		p.bar = bench.NewProgress(f)
	}
	return p
}

// stuck looks at the work, shows its progress, and tells whether it stands
// still.
func (p *pace) stuck(now time.Time) bool {
	done, total := p.done()
	if done != p.last {
		p.last, p.moved = done, now
	}
	if p.bar != nil && total > 0 && now.Sub(p.began) >= patience {
		p.bar.Step(max(0, min(done, total)), total, p.what)
	}
	return now.Sub(p.moved) >= standstill
}

// end takes the progress off the terminal.
func (p *pace) end() {
	if p.bar != nil && time.Since(p.began) >= patience {
		p.bar.Done()
	}
}
