package scontest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Numbers are numbered datagrams that go one way until they are stopped.
type Numbers struct {
	From, To  net.Conn
	Sent      atomic.Uint64
	Arrived   atomic.Uint64
	Overtaken atomic.Uint64 // arrived after one with a higher number
	Latest    atomic.Int64  // when the latest that arrived was sent, in ns
	stopping  chan struct{}
	StopSend  func() error // ends the sender
	Stop      func() error // ends the receiver, too; numbers under way are lost
}

// numberLen is the length of a datagram: number, time, padding.
const numberLen = 64

// underway is how many numbers are on their way before the sender waits for
// them, for a moment: what queues hold.
const underway = 256

// SendNumbers sends some at a time, in one system call and as one burst, and
// pauses in between.
func SendNumbers(t *testing.T, from, to net.Conn, burst int, pause time.Duration) *Numbers {
	t.Helper()
	n := &Numbers{From: from, To: to, stopping: make(chan struct{})}
	if burst > 1 {
		if err := segment(from); err != nil {
			t.Fatalf("sending bursts: %v", err)
		}
	}
	sender, receiver := make(chan error), make(chan error)
	n.StopSend = sync.OnceValue(func() error {
		close(n.stopping)
		return <-sender
	})
	n.Stop = sync.OnceValue(func() error {
		err := n.StopSend()
		_ = to.SetReadDeadline(time.Now())
		return errors.Join(err, <-receiver)
	})
	_ = to.SetReadDeadline(time.Time{})
	go func() { receiver <- n.receive() }()
	go func() { sender <- n.send(burst, pause) }()
	t.Cleanup(func() {
		if err := n.Stop(); err != nil {
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

func (n *Numbers) send(burst int, pause time.Duration) error {
	if err := stay(); err != nil {
		return err
	}
	tick := time.NewTicker(max(pause, time.Microsecond))
	defer tick.Stop()
	buf := make([]byte, burst*numberLen)
	for {
		select {
		case <-n.stopping:
			return nil
		case <-tick.C:
		}
		for waited := 0; n.Sent.Load() > n.Arrived.Load()+underway && waited < 10; waited++ {
			time.Sleep(100 * time.Microsecond)
		}
		number, now := n.Sent.Load(), time.Now().UnixNano()
		for i := range burst {
			binary.BigEndian.PutUint64(buf[i*numberLen:], number+uint64(i))
			binary.BigEndian.PutUint64(buf[i*numberLen+8:], uint64(now))
		}
		// A refusal is news about an earlier one.
		if _, err := n.From.Write(buf); err != nil && !Refused(err) {
			return fmt.Errorf("number %d: %w", number, err)
		}
		n.Sent.Add(uint64(burst))
	}
}

// stay keeps the calling goroutine on the CPU where it is, for good: the
// datagrams of a sender that moves may overtake each other without SCON.
func stay() error {
	runtime.LockOSThread()
	var cpu uint32
	if _, _, errno := unix.Syscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0); errno != 0 {
		return fmt.Errorf("asking for the CPU: %w", errno)
	}
	var here unix.CPUSet
	here.Set(int(cpu))
	if err := unix.SchedSetaffinity(0, &here); err != nil {
		return fmt.Errorf("staying on CPU %d: %w", cpu, err)
	}
	return nil
}

// Refused tells an error that an ICMP packet brought.
func Refused(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.ENETUNREACH)
}

func (n *Numbers) receive() error {
	buf, next := make([]byte, 2*numberLen), uint64(0)
	for {
		got, err := n.To.Read(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil // stopped
		case Refused(err):
			continue
		case err != nil:
			return err
		case got != numberLen:
			return fmt.Errorf("a datagram of %d bytes", got)
		}
		number := binary.BigEndian.Uint64(buf)
		if number < next {
			n.Overtaken.Add(1)
		} else {
			next = number + 1
		}
		n.Latest.Store(int64(binary.BigEndian.Uint64(buf[8:])))
		n.Arrived.Add(1)
	}
}

// WantAll stops the numbers: all must have arrived, and none overtaken.
func (n *Numbers) WantAll(t *testing.T, what string) {
	t.Helper()
	_ = n.StopSend() // the test's end tells the error
	for end := time.Now().Add(time.Second); n.Arrived.Load() < n.Sent.Load() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	_ = n.Stop()
	if lost := n.Sent.Load() - n.Arrived.Load(); lost != 0 || n.Overtaken.Load() != 0 {
		t.Errorf("%s: of %d, %d are lost, %d were overtaken", what, n.Sent.Load(), lost, n.Overtaken.Load())
	}
	t.Logf("%s: %d arrived", what, n.Arrived.Load())
}

// Proceed waits until so many more have arrived.
func (n *Numbers) Proceed(t *testing.T, more uint64) {
	t.Helper()
	want := n.Arrived.Load() + more
	Eventually(t, "numbers arrive", func() error {
		if got := n.Arrived.Load(); got < want {
			return fmt.Errorf("%d are missing", want-got)
		}
		return nil
	})
}
