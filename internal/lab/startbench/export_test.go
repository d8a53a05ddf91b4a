package startbench

import (
	"testing"
	"time"
)

// ShortenQuiet lets the step "quiet" wait no longer than a test should.
func ShortenQuiet(t *testing.T) {
	before := quietTime
	quietTime = time.Second
	t.Cleanup(func() { quietTime = before })
}
