package kernels

import (
	"bytes"
	"regexp"
	"testing"
	"time"
)

// progress reads a guest's console while a suite runs and logs each test that has
// ended, with the time that the suite's others may take.
type progress struct {
	t       *testing.T
	start   time.Time
	all     int // the suite's tests, without subtests
	ended   int
	partial []byte // a line without its end
}

// topLevel matches the line that a test, not a subtest, prints when it ends.
var topLevel = regexp.MustCompile(`^--- (?:PASS|SKIP|FAIL): \S+ \(\S+\)`)

func (p *progress) Write(text []byte) (int, error) {
	p.partial = append(p.partial, text...)
	for {
		line, rest, whole := bytes.Cut(p.partial, []byte("\n"))
		if !whole {
			return len(text), nil
		}
		p.partial = rest
		if v := topLevel.Find(line); v != nil {
			p.ended++
			took := time.Since(p.start)
			left := took / time.Duration(p.ended) * time.Duration(max(0, p.all-p.ended))
			p.t.Logf("%d of %d, %s left: %s", p.ended, p.all, left.Round(time.Second), v)
		}
	}
}
