package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// lineEvery is how often a progress that is not on a terminal writes a line.
const lineEvery = 10 * time.Second

// barWidth in characters.
const barWidth = 24

// NewProgress returns one that draws a bar on a terminal, and elsewhere writes
// a line every ten seconds.
func NewProgress(f *os.File) *Progress {
	return &Progress{out: f, terminal: IsTerminal(f), started: time.Now()}
}

// Progress shows the progress of a run.
type Progress struct {
	out      io.Writer
	terminal bool
	started  time.Time
	written  time.Time // when the last line was written
}

func (p *Progress) Step(done, total int, next string) {
	now := time.Now()
	if done == 0 { // what came before, such as a boot, says nothing about the steps
		p.started = now
	}
	left := timeLeft(now.Sub(p.started), done, total)
	switch {
	case p.terminal:
		full := barWidth * done / total
		fmt.Fprintf(p.out, "\r\033[K[%s%s] %3d %%  %s  %s",
			strings.Repeat("#", full), strings.Repeat(".", barWidth-full), 100*done/total, left, next)
	case now.Sub(p.written) >= lineEvery:
		p.written = now
		fmt.Fprintf(p.out, "%3d %%  %s  %s\n", 100*done/total, left, next)
	}
}

func (p *Progress) Done() {
	if p.terminal {
		fmt.Fprint(p.out, "\r\033[K")
	}
}

// timeLeft judges by the steps that are over.
func timeLeft(elapsed time.Duration, done, total int) string {
	if done == 0 {
		return "time left unknown"
	}
	left := elapsed / time.Duration(done) * time.Duration(total-done)
	return left.Round(time.Second).String() + " left"
}
