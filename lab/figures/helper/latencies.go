package helper

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/scon-project/scon/lab/figures"
)

// latencies collects latencies up to a minute, with three significant digits. The
// zero value is not usable; see newLatencies.
type latencies struct {
	mu        sync.Mutex
	histogram *hdrhistogram.Histogram
}

func newLatencies() *latencies {
	return &latencies{histogram: hdrhistogram.New(1, int64(time.Minute), 3)}
}

func (l *latencies) add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// The value is clamped to the range, so that there is no error.
	_ = l.histogram.RecordValue(min(max(1, int64(d)), int64(time.Minute)))
}

func (l *latencies) report() figures.Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.histogram
	return figures.Report{
		Messages: int(h.TotalCount()),
		Mean:     time.Duration(h.Mean()),
		P50:      time.Duration(h.ValueAtQuantile(50)),
		P99:      time.Duration(h.ValueAtQuantile(99)),
		Max:      time.Duration(h.Max()),
	}
}
