package pool

import (
	"bytes"
	"fmt"
	"os"
	"time"
)

const (
	// The pressure is averaged since the last reading, unless that is too recent or too
	// old.
	justNow = 10 * time.Millisecond
	longAgo = time.Second
	// busy is the share of time with tasks waiting for a CPU above which the refill
	// pauses.
	busy = 0.5
)

// pressure measures whether the CPUs are busy.
type pressure struct {
	// read returns the total time in which a task waited for a CPU.
	read   func() (time.Duration, error)
	at     time.Time
	waited time.Duration
	high   bool
}

// isHigh reports whether tasks waited for a CPU during most of the time since the last
// reading; it is true at the first reading after a long time. Without pressure stall
// information it is false.
func (p *pressure) isHigh(now time.Time) bool {
	elapsed := now.Sub(p.at)
	if elapsed < justNow {
		return p.high
	}
	waited, err := p.read()
	if err != nil {
		return false
	}
	p.high = elapsed > longAgo || float64(waited-p.waited) > busy*float64(elapsed)
	p.at, p.waited = now, waited
	return p.high
}

// cpuPressure reads the kernel's pressure stall information.
func cpuPressure() (time.Duration, error) {
	text, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		return 0, err
	}
	return parsePressure(text)
}

// parsePressure parses "some avg10=1.00 avg60=0.50 avg300=0.10 total=123456", the total
// in microseconds, and ignores further lines.
func parsePressure(text []byte) (time.Duration, error) {
	var averages [3]float64
	var total int64
	line, _, _ := bytes.Cut(text, []byte("\n"))
	_, err := fmt.Sscanf(string(line), "some avg10=%f avg60=%f avg300=%f total=%d", &averages[0], &averages[1], &averages[2], &total)
	if err != nil {
		return 0, fmt.Errorf("parse the CPU pressure: %q: %w", line, err)
	}
	return time.Duration(total) * time.Microsecond, nil
}
