package daemon_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// numbers are numbered datagrams that go one way until they are stopped.
type numbers struct {
	from, to  net.Conn
	sent      atomic.Uint64
	arrived   atomic.Uint64
	overtaken atomic.Uint64 // arrived after one with a higher number
	latest    atomic.Int64  // when the latest that arrived was sent, in ns
	stopping  chan struct{}
	stopSend  func() error // ends the sender
	stop      func() error // ends the receiver, too; numbers under way are lost
}

// numberLen is the length of a datagram: number, time, padding.
const numberLen = 64

// underway is how many numbers are on their way before the sender waits for
// them, for a moment: what queues hold.
const underway = 256

// sendNumbers sends some at a time, in one system call and as one burst, and
// pauses in between.
func sendNumbers(t *testing.T, from, to net.Conn, burst int, pause time.Duration) *numbers {
	t.Helper()
	n := &numbers{from: from, to: to, stopping: make(chan struct{})}
	if burst > 1 {
		if err := segment(from); err != nil {
			t.Fatalf("sending bursts: %v", err)
		}
	}
	sender, receiver := make(chan error), make(chan error)
	n.stopSend = sync.OnceValue(func() error {
		close(n.stopping)
		return <-sender
	})
	n.stop = sync.OnceValue(func() error {
		err := n.stopSend()
		_ = to.SetReadDeadline(time.Now())
		return errors.Join(err, <-receiver)
	})
	_ = to.SetReadDeadline(time.Time{})
	go func() { receiver <- n.receive() }()
	go func() { sender <- n.send(burst, pause) }()
	t.Cleanup(func() {
		if err := n.stop(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// segment has a socket cut what it is given into datagrams.
func segment(c net.Conn) error {
	udp, ok := c.(*net.UDPConn)
	if !ok {
		udp = c.(*answering).UDPConn
	}
	raw, err := udp.SyscallConn()
	if err != nil {
		return err
	}
	control := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, numberLen)
	})
	return errors.Join(control, err)
}

func (n *numbers) send(burst int, pause time.Duration) error {
	tick := time.NewTicker(max(pause, time.Microsecond))
	defer tick.Stop()
	buf := make([]byte, burst*numberLen)
	for {
		select {
		case <-n.stopping:
			return nil
		case <-tick.C:
		}
		for waited := 0; n.sent.Load() > n.arrived.Load()+underway && waited < 10; waited++ {
			time.Sleep(100 * time.Microsecond)
		}
		number, now := n.sent.Load(), time.Now().UnixNano()
		for i := range burst {
			binary.BigEndian.PutUint64(buf[i*numberLen:], number+uint64(i))
			binary.BigEndian.PutUint64(buf[i*numberLen+8:], uint64(now))
		}
		// A refusal is news about an earlier one.
		if _, err := n.from.Write(buf); err != nil && !refused(err) {
			return fmt.Errorf("number %d: %w", number, err)
		}
		n.sent.Add(uint64(burst))
	}
}

// refused tells an error that an ICMP packet brought.
func refused(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.ENETUNREACH)
}

func (n *numbers) receive() error {
	buf, next := make([]byte, 2*numberLen), uint64(0)
	for {
		got, err := n.to.Read(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil // stopped
		case refused(err):
			continue
		case err != nil:
			return err
		case got != numberLen:
			return fmt.Errorf("a datagram of %d bytes", got)
		}
		number := binary.BigEndian.Uint64(buf)
		if number < next {
			n.overtaken.Add(1)
		} else {
			next = number + 1
		}
		n.latest.Store(int64(binary.BigEndian.Uint64(buf[8:])))
		n.arrived.Add(1)
	}
}

// wantAll stops the numbers: all must have arrived, and none overtaken.
func (n *numbers) wantAll(t *testing.T, what string) {
	t.Helper()
	_ = n.stopSend() // the test's end tells the error
	for end := time.Now().Add(time.Second); n.arrived.Load() < n.sent.Load() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	_ = n.stop()
	if lost := n.sent.Load() - n.arrived.Load(); lost != 0 || n.overtaken.Load() != 0 {
		t.Errorf("%s: of %d, %d are lost, %d were overtaken", what, n.sent.Load(), lost, n.overtaken.Load())
	}
	t.Logf("%s: %d arrived", what, n.arrived.Load())
}

// proceed waits until so many more have arrived.
func (n *numbers) proceed(t *testing.T, more uint64) {
	t.Helper()
	want := n.arrived.Load() + more
	eventually(t, "numbers arrive", func() error {
		if got := n.arrived.Load(); got < want {
			return fmt.Errorf("%d are missing", want-got)
		}
		return nil
	})
}
