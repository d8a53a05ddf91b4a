package cli

import (
	"io"
	"os"
	"time"
)

const (
	// Standstill is how long work may make no progress until it is given up.
	Standstill = time.Minute
	// patience is how long work may take until its progress is shown.
	patience = 2 * time.Second
	// PollInterval is how often it is checked.
	PollInterval = 20 * time.Millisecond
)

// bar is where progress is shown.
type bar interface {
	Step(done, total int, next string)
	Done()
}

// Pace follows work that may take long, but must not stand still.
type Pace struct {
	what  string
	done  func() (done, total int) // total 0: unknown
	bar   bar                      // nil: nothing is shown
	began time.Time
	moved time.Time // when done changed
	last  int
}

// NewPace follows what done counts, and shows it on out if that is a terminal or a file.
func NewPace(out io.Writer, what string, done func() (done, total int)) *Pace {
	p := &Pace{what: what, done: done, began: time.Now(), moved: time.Now()}
	if f, ok := out.(*os.File); ok {
		p.bar = NewProgress(f)
	}
	return p
}

// Stuck checks the work, shows its progress, and reports whether it stands
// still.
func (p *Pace) Stuck(now time.Time) bool {
	done, total := p.done()
	if done != p.last {
		p.last, p.moved = done, now
	}
	if p.bar != nil && total > 0 && now.Sub(p.began) >= patience {
		p.bar.Step(max(0, min(done, total)), total, p.what)
	}
	return now.Sub(p.moved) >= Standstill
}

// End takes the progress off the terminal.
func (p *Pace) End() {
	if p.bar != nil && time.Since(p.began) >= patience {
		p.bar.Done()
	}
}
