package peer

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// serveFlows confirms each flow of one connection with a byte once it is complete.
func serveFlows(s socket, spec Spec) (Report, error) {
	var report Report
	flow := make([]byte, slices.Max(spec.Sizes))
	for i := 0; ; i++ {
		err := s.receiveAll(flow[:spec.Sizes[i%len(spec.Sizes)]])
		if errors.Is(err, errClosed) {
			return report, nil
		}
		if err != nil {
			return Report{}, err
		}
		report.Total++
		if err := s.send(flow[:1]); err != nil {
			return Report{}, err
		}
	}
}

// driveFlows measures the duration of one flow after the other, up to the server's
// confirmation.
func driveFlows(s socket, spec Spec) (Report, error) {
	if err := s.setTimeout(answerTimeout); err != nil {
		return Report{}, err
	}
	flow := make([]byte, slices.Max(spec.Sizes))
	send := func(i int) error {
		if err := s.send(flow[:spec.Sizes[i%len(spec.Sizes)]]); err != nil {
			return err
		}
		if err := s.receiveAll(flow[:1]); err != nil {
			return fmt.Errorf("flow %d: %w", i, err)
		}
		return nil
	}
	for i := range spec.WarmUp {
		if err := send(i); err != nil {
			return Report{}, err
		}
		pause(time.Millisecond)
	}

	times := newTimes()
	cpu, start := threadCPU(), time.Now()
	begun := start
	for i := range spec.Count {
		if err := send(spec.WarmUp + i); err != nil {
			return Report{}, err
		}
		now := time.Now()
		if err := times.RecordValue(int64(now.Sub(begun))); err != nil {
			return Report{}, err
		}
		begun = now
	}
	return reportOf(times, time.Since(start), threadCPU()-cpu), nil
}
