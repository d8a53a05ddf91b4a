package pool

import (
	"bytes"
	"fmt"
	"os"
	"time"
)

const (
	// A share of the pressure is of the time since the last look, unless that
	// was just now, or too long ago to say anything.
	justNow = 10 * time.Millisecond
	longAgo = time.Second
	// busy is the share of the time in which somebody waits for a CPU that the
	// refill leaves to others.
	busy = 0.5
)

// pressure tells whether the CPUs have time to spare.
type pressure struct {
	// read is how long somebody has waited for a CPU, of all time.
	read   func() (time.Duration, error)
	at     time.Time
	waited time.Duration
	high   bool
}

// isHigh tells whether there was somebody who waited for a CPU, most of the
// time since the last look, and so once after a long time without one. A kernel
// that does not count it has none.
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

// cpuPressure reads the kernel's count.
func cpuPressure() (time.Duration, error) {
	text, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		return 0, err
	}
	return parsePressure(text)
}

// parsePressure reads "some avg10=1.00 avg60=0.50 avg300=0.10 total=123456",
// the last in microseconds, and more lines.
func parsePressure(text []byte) (time.Duration, error) {
	var averages [3]float64
	var total int64
	line, _, _ := bytes.Cut(text, []byte("\n"))
	_, err := fmt.Sscanf(string(line), "some avg10=%f avg60=%f avg300=%f total=%d", &averages[0], &averages[1], &averages[2], &total)
	if err != nil {
		return 0, fmt.Errorf("read the pressure on the CPUs: %q: %w", line, err)
	}
	return time.Duration(total) * time.Microsecond, nil
}
