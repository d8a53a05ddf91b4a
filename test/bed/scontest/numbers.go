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

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Numbers is a stream of numbered datagrams in one direction, until it is stopped.
type Numbers struct {
	From, To  net.Conn
	Sent      atomic.Uint64
	Arrived   atomic.Uint64
	Overtaken atomic.Uint64 // arrived after a higher number (reordered)
	Latest    atomic.Int64  // send time of the latest that arrived, in ns
	stopping  chan struct{}
	StopSend  func() error // stops the sender
	Stop      func() error // stops the receiver as well; numbers in flight are lost
}

// numberLen is the length of a datagram: number, time, sender, padding.
const numberLen = 64

// underway is the number of datagrams in flight at which the sender pauses, so that
// queues do not overflow.
const underway = 256

// SendNumbers sends bursts of datagrams, each with one system call, with a pause
// between two bursts.
func SendNumbers(t *testing.T, from, to net.Conn, burst int, pause time.Duration) *Numbers {
	t.Helper()
	return sendNumbers(t, from, to, burst, pause, []int{anyCPU})
}

// SendNumbersEverywhere is SendNumbers from each CPU over one socket. Each CPU has
// a sequence of its own: there is no order between CPUs.
func SendNumbersEverywhere(t *testing.T, from, to net.Conn, burst int, pause time.Duration) *Numbers {
	t.Helper()
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatal(err)
	}
	var cpus []int
	for cpu := 0; len(cpus) < allowed.Count(); cpu++ {
		if allowed.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return sendNumbers(t, from, to, burst, pause, cpus)
}

// anyCPU selects the CPU on which a sender happens to start.
const anyCPU = -1

// sendNumbers sends from the given CPUs.
func sendNumbers(t *testing.T, from, to net.Conn, burst int, pause time.Duration, cpus []int) *Numbers {
	t.Helper()
	n := &Numbers{From: from, To: to, stopping: make(chan struct{})}
	if burst > 1 {
		if err := segment(from); err != nil {
			t.Fatalf("send bursts: %v", err)
		}
	}
	var senders errgroup.Group
	receiver := make(chan error)
	n.StopSend = sync.OnceValue(func() error {
		close(n.stopping)
		return senders.Wait()
	})
	n.Stop = sync.OnceValue(func() error {
		err := n.StopSend()
		_ = to.SetReadDeadline(time.Now())
		return errors.Join(err, <-receiver)
	})
	_ = to.SetReadDeadline(time.Time{})
	go func() { receiver <- n.receive(len(cpus)) }()
	for sender, cpu := range cpus {
		senders.Go(func() error { return n.send(uint64(sender), cpu, burst, pause) })
	}
	t.Cleanup(func() {
		if err := n.Stop(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// segment makes a socket split each write into datagrams (UDP_SEGMENT).
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

func (n *Numbers) send(sender uint64, cpu, burst int, pause time.Duration) error {
	if err := stay(cpu); err != nil {
		return err
	}
	write := n.From.Write
	if cpu != anyCPU {
		write = atOnce(n.From.(*net.UDPConn))
	}
	tick := time.NewTicker(max(pause, time.Microsecond))
	defer tick.Stop()
	buf := make([]byte, burst*numberLen)
	for number := uint64(0); ; number += uint64(burst) {
		select {
		case <-n.stopping:
			return nil
		case <-tick.C:
		}
		for waited := 0; n.Sent.Load() > n.Arrived.Load()+underway && waited < 10; waited++ {
			time.Sleep(100 * time.Microsecond)
		}
		now := time.Now().UnixNano()
		for i := range burst {
			binary.BigEndian.PutUint64(buf[i*numberLen:], number+uint64(i))
			binary.BigEndian.PutUint64(buf[i*numberLen+8:], uint64(now))
			binary.BigEndian.PutUint64(buf[i*numberLen+16:], sender)
		}
		// ECONNREFUSED is about an earlier datagram.
		if _, err := write(buf); err != nil && !Refused(err) {
			return fmt.Errorf("number %d: %w", number, err)
		}
		n.Sent.Add(uint64(burst))
	}
}

// atOnce returns a function that writes to a socket concurrently with other
// writers, for which Write would wait.
func atOnce(c *net.UDPConn) func(b []byte) (int, error) {
	return func(b []byte) (n int, err error) {
		raw, err := c.SyscallConn()
		if err != nil {
			return 0, err
		}
		control := raw.Control(func(fd uintptr) {
			for n, err = unix.Write(int(fd), b); errors.Is(err, unix.EAGAIN); n, err = unix.Write(int(fd), b) {
				time.Sleep(100 * time.Microsecond) // its buffer is full
			}
		})
		return n, errors.Join(control, err)
	}
}

// stay pins the calling goroutine to a CPU for the rest of its life: a sender that
// migrates may reorder its datagrams without SCON.
func stay(cpu int) error {
	runtime.LockOSThread()
	if cpu == anyCPU {
		var here uint32
		if _, _, errno := unix.Syscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&here)), 0, 0); errno != 0 {
			return fmt.Errorf("get the CPU: %w", errno)
		}
		cpu = int(here)
	}
	var here unix.CPUSet
	here.Set(cpu)
	if err := unix.SchedSetaffinity(0, &here); err != nil {
		return fmt.Errorf("pin to CPU %d: %w", cpu, err)
	}
	return nil
}

// Refused reports whether an error was caused by an ICMP packet.
func Refused(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.ENETUNREACH)
}

func (n *Numbers) receive(senders int) error {
	buf, next := make([]byte, 2*numberLen), make([]uint64, senders)
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
		number, sender := binary.BigEndian.Uint64(buf), binary.BigEndian.Uint64(buf[16:])
		if number < next[sender] {
			n.Overtaken.Add(1)
		} else {
			next[sender] = number + 1
		}
		n.Latest.Store(int64(binary.BigEndian.Uint64(buf[8:])))
		n.Arrived.Add(1)
	}
}

// WantAll stops the stream and fails unless all datagrams arrived, in order.
func (n *Numbers) WantAll(t *testing.T, what string) {
	t.Helper()
	_ = n.StopSend() // the cleanup reports the error
	for end := time.Now().Add(Patience); n.Arrived.Load() < n.Sent.Load() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	_ = n.Stop()
	if lost := n.Sent.Load() - n.Arrived.Load(); lost != 0 || n.Overtaken.Load() != 0 {
		t.Errorf("%s: of %d datagrams %d were lost and %d reordered", what, n.Sent.Load(), lost, n.Overtaken.Load())
	}
	t.Logf("%s: %d datagrams arrived", what, n.Arrived.Load())
}

// Proceed waits until that many more datagrams have arrived.
func (n *Numbers) Proceed(t *testing.T, more uint64) {
	t.Helper()
	want := n.Arrived.Load() + more
	Eventually(t, "numbers arrive", func() error {
		if got := n.Arrived.Load(); got < want {
			return fmt.Errorf("%d datagrams are missing", want-got)
		}
		return nil
	})
}
