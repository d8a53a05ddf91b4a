package startbench

import (
	"testing"
	"time"
)

// ShortenQuiet shortens the wait of the step "quiet" for a test.
func ShortenQuiet(t *testing.T) {
	before := quietTime
	quietTime = time.Second
	t.Cleanup(func() { quietTime = before })
}
