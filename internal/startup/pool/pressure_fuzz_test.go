package pool

import (
	"fmt"
	"testing"
	"time"
)

// FuzzPressure: the total of every line that the kernel writes is read, and nothing else
// causes a panic.
func FuzzPressure(f *testing.F) {
	f.Add([]byte("some avg10="), int64(0))
	f.Add([]byte("\n"), int64(1)<<40)
	f.Fuzz(func(t *testing.T, text []byte, total int64) {
		_, _ = parsePressure(text)
		if total < 0 || total > int64(1)<<50 {
			return
		}
		line := fmt.Appendf(nil, "some avg10=0.10 avg60=99.00 avg300=0.00 total=%d\n%s", total, text)
		if got, err := parsePressure(line); err != nil || got != time.Duration(total)*time.Microsecond {
			t.Errorf("%q: %v, %v", line, got, err)
		}
	})
}
