package peer

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// The first byte of a UDP message is its kind.
const (
	warming  = 'w'
	counted  = 'c'
	finished = 'e'
)

// clockEvery is the number of messages between two readings of the clock.
const clockEvery = 64

// serveUDPStream counts messages up to the finished message.
func serveUDPStream(s socket, spec Spec) (Report, error) {
	if err := s.answerOnlyFirst(); err != nil {
		return Report{}, err
	}
	var report Report
	var start time.Time
	message := make([]byte, spec.Size)
	for {
		if _, err := s.receive(message); err != nil {
			return Report{}, err
		}
		switch message[0] {
		case counted:
			if report.Total == 0 {
				start = time.Now()
			}
			report.Total++
			if report.Total%clockEvery == 0 {
				// The first message started the clock and is not counted.
				report.Messages = report.Total - 1
				report.Elapsed = time.Since(start)
			}
		case finished:
			if report.Messages == 0 {
				return report, fmt.Errorf("only %d messages arrived", report.Total)
			}
			return report, s.send(message)
		}
	}
}

// driveUDPStream sends for the spec's duration.
func driveUDPStream(s socket, spec Spec) (Report, error) {
	message := make([]byte, spec.Size)
	message[0] = warming
	for range spec.WarmUp {
		if err := s.send(message); err != nil {
			return Report{}, err
		}
		pause(time.Millisecond)
	}
	message[0] = counted
	report, err := sendFor(s, message, spec.Duration)
	if err != nil {
		return Report{}, err
	}
	return report, finishUDP(s, message)
}

// sendFor sends one message repeatedly for a duration.
func sendFor(s socket, message []byte, d time.Duration) (Report, error) {
	var report Report
	cpu, start := threadCPU(), time.Now()
	for report.Elapsed < d {
		for range clockEvery {
			if err := s.send(message); err != nil {
				return Report{}, err
			}
		}
		report.Total += clockEvery
		report.Elapsed = time.Since(start)
	}
	report.Messages = report.Total
	report.CPU = threadCPU() - cpu
	return report, nil
}

// finishUDP sends the finished message until the server answers it: while the
// server's queue is full, messages are lost.
func finishUDP(s socket, message []byte) error {
	message[0] = finished
	if err := s.setTimeout(5 * time.Millisecond); err != nil {
		return err
	}
	for range 200 {
		err := s.send(message)
		if err == nil {
			_, err = s.receive(message)
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.ECONNREFUSED):
			return nil // the server read an earlier one and has exited
		case !errors.Is(err, unix.EAGAIN):
			return err
		}
	}
	return errors.New("the server does not confirm the end of the stream")
}

// serveTCPStream counts the whole messages of one connection up to its end. The
// clock starts after the warm-up.
func serveTCPStream(s socket, spec Spec) (Report, error) {
	ahead := spec.WarmUp * spec.Size
	var start time.Time
	var bytes int
	var report Report
	buffer := make([]byte, 64<<10)
	for {
		n, err := s.receive(buffer)
		if errors.Is(err, errClosed) {
			break
		}
		if err != nil {
			return Report{}, err
		}
		now := time.Now()
		bytes += n
		if bytes <= ahead {
			continue
		}
		if start.IsZero() {
			start, ahead = now, bytes
			continue
		}
		report.Elapsed = now.Sub(start)
	}
	report.Messages = uint64((bytes - ahead) / spec.Size)
	report.Total = uint64(bytes/spec.Size - spec.WarmUp)
	if report.Messages == 0 {
		return report, fmt.Errorf("only %d bytes arrived", bytes)
	}
	return report, nil
}

// driveTCPStream sends for the spec's duration, closes its side, and waits until
// the server has read everything.
func driveTCPStream(s socket, spec Spec) (Report, error) {
	message := make([]byte, spec.Size)
	for range spec.WarmUp {
		if err := s.send(message); err != nil {
			return Report{}, err
		}
		pause(time.Millisecond)
	}
	report, err := sendFor(s, message, spec.Duration)
	if err != nil {
		return Report{}, err
	}
	if err := unix.Shutdown(int(s), unix.SHUT_WR); err != nil {
		return Report{}, fmt.Errorf("end the stream: %w", err)
	}
	if _, err := s.receive(message); !errors.Is(err, errClosed) {
		return Report{}, fmt.Errorf("wait for the end of the stream: %w", err)
	}
	return report, nil
}
