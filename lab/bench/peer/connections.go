package peer

import (
	"fmt"
	"time"
)

// serveConnections answers one request on each of the spec's connections and closes
// it, like a web server without keep-alive.
func serveConnections(listener socket, spec Spec) (Report, error) {
	var cpu time.Duration
	var start time.Time
	message := make([]byte, spec.Size)
	for i := range spec.WarmUp + spec.Count {
		if i == spec.WarmUp {
			cpu, start = threadCPU(), time.Now()
		}
		if err := serveConnection(listener, message); err != nil {
			return Report{}, fmt.Errorf("connection %d: %w", i, err)
		}
	}
	n := uint64(spec.Count)
	return Report{Messages: n, Total: n, Elapsed: time.Since(start), CPU: threadCPU() - cpu}, nil
}

func serveConnection(listener socket, message []byte) error {
	s, err := listener.accept()
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.receiveAll(message); err != nil {
		return err
	}
	return s.send(message)
}

// driveConnections measures the duration of one connection after the other.
func driveConnections(spec Spec) (Report, error) {
	message := make([]byte, spec.Size)
	for range spec.WarmUp {
		if err := driveConnection(spec, message); err != nil {
			return Report{}, err
		}
		pause(time.Millisecond)
	}

	times := newTimes()
	cpu, start := threadCPU(), time.Now()
	begun := start
	for i := range spec.Count {
		if err := driveConnection(spec, message); err != nil {
			return Report{}, fmt.Errorf("connection %d: %w", i, err)
		}
		now := time.Now()
		if err := times.RecordValue(int64(now.Sub(begun))); err != nil {
			return Report{}, err
		}
		begun = now
	}
	return reportOf(times, time.Since(start), threadCPU()-cpu), nil
}

func driveConnection(spec Spec, message []byte) error {
	s, err := dial(spec.Proto, spec.Address)
	if err != nil {
		return err
	}
	defer s.close()
	return ask(s, message)
}
