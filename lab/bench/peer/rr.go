package peer

import (
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// answerTimeout is the time limit for a response.
const answerTimeout = 2 * time.Second

// serveUDPRequests echoes every message, up to and including the finished message.
func serveUDPRequests(s socket, spec Spec) (Report, error) {
	if err := s.answerOnlyFirst(); err != nil {
		return Report{}, err
	}
	var report Report
	message := make([]byte, spec.Size)
	for {
		if _, err := s.receive(message); err != nil {
			return Report{}, err
		}
		if err := s.send(message); err != nil {
			return Report{}, err
		}
		switch message[0] {
		case counted:
			report.Total++
		case finished:
			return report, nil
		}
	}
}

// serveTCPRequests echoes every message of one connection.
func serveTCPRequests(s socket, spec Spec) (Report, error) {
	var report Report
	message := make([]byte, spec.Size)
	for {
		err := s.receiveAll(message)
		if errors.Is(err, errClosed) {
			return report, nil
		}
		if err != nil {
			return Report{}, err
		}
		report.Total++
		if err := s.send(message); err != nil {
			return Report{}, err
		}
	}
}

// driveRequests measures one round trip after the other.
func driveRequests(s socket, spec Spec) (Report, error) {
	if err := s.setTimeout(answerTimeout); err != nil {
		return Report{}, err
	}
	message := make([]byte, spec.Size)
	message[0] = warming
	for range spec.WarmUp {
		if err := ask(s, message); err != nil {
			return Report{}, err
		}
		pause(time.Millisecond)
	}

	message[0] = counted
	times := newTimes()
	cpu, start := threadCPU(), time.Now()
	for begun := start; begun.Sub(start) < spec.Duration; {
		if err := ask(s, message); err != nil {
			return Report{}, err
		}
		now := time.Now()
		if err := times.RecordValue(int64(now.Sub(begun))); err != nil {
			return Report{}, err
		}
		begun = now
	}
	report := reportOf(times, time.Since(start), threadCPU()-cpu)
	if spec.Proto == "udp" {
		return report, finishUDP(s, message)
	}
	return report, nil
}

// ask sends a request and waits for its response.
func ask(s socket, message []byte) error {
	if err := s.send(message); err != nil {
		return err
	}
	if err := s.receiveAll(message); err != nil {
		return fmt.Errorf("wait for a response: %w", err)
	}
	return nil
}

// newTimes returns a histogram of nanoseconds up to a minute, with three
// significant digits.
func newTimes() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, int64(time.Minute), 3)
}

func reportOf(times *hdrhistogram.Histogram, elapsed, cpu time.Duration) Report {
	n := uint64(times.TotalCount())
	return Report{
		Messages: n,
		Elapsed:  elapsed,
		Total:    n,
		CPU:      cpu,
		P50:      time.Duration(times.ValueAtQuantile(50)),
		P99:      time.Duration(times.ValueAtQuantile(99)),
		P999:     time.Duration(times.ValueAtQuantile(99.9)),
		Max:      time.Duration(times.Max()),
	}
}
