package latency

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// generatorArgs are the arguments with which this executable calls Generate.
var generatorArgs = []string{"latency", "generate"}

// ttl of the packets: larger than the hop count of the longest line.
const ttl = 255

// nice is the generator's nice value, so that other processes on its CPU hardly
// delay it.
const nice = -20

// leadTime is the time for which uncounted packets are sent at the same rate before
// the others.
const leadTime = 10 * time.Millisecond

// order is one line to a generator.
type order struct {
	To       netip.AddrPort `json:"to"`
	Run      uint32         `json:"run"` // 0 warms up: the taps ignore these packets
	Schedule Schedule       `json:"schedule"`
	CPUs     []int          `json:"cpus"`
}

// answer is one line from a generator.
type answer struct {
	Schedule Schedule `json:"schedule"` // with its start time
	Sent     sent     `json:"sent"`
	// CallNS is the mean duration of a send call, including the forwarding that the
	// kernel does within it.
	CallNS float64 `json:"call_ns"`
	Error  string  `json:"error,omitempty"`
}

// Generate is the main function of a generator process in a line's first node: it
// executes the orders that it reads from in and writes the answers to out. When in
// ends, the process exits at once.
func Generate(in io.Reader, out io.Writer) {
	debug.SetGCPercent(-1) // a collection would show in the latencies
	orders := make(chan order)
	go func() {
		runtime.LockOSThread() // the thread that orders pin to CPUs
		answers := json.NewEncoder(out)
		sockets := map[netip.AddrPort]int{} // kept, since a connection is admitted by its first packets
		for o := range orders {
			a, err := carryOut(o, sockets)
			if err != nil {
				a.Error = err.Error()
			}
			answers.Encode(a)
		}
	}()
	decoder := json.NewDecoder(in)
	for {
		var o order
		if err := decoder.Decode(&o); err != nil {
			if errors.Is(err, io.EOF) {
				os.Exit(0)
			}
			fmt.Fprintln(os.Stderr, "read an order:", err)
			os.Exit(1)
		}
		orders <- o
	}
}

// carryOut sends the packets of an order.
func carryOut(o order, sockets map[netip.AddrPort]int) (a answer, err error) {
	if err := setCPUs(o.CPUs); err != nil {
		return a, err
	}
	if err := setPriority(); err != nil {
		return a, fmt.Errorf("raise the priority: %w", err)
	}
	fd, open := sockets[o.To]
	if !open {
		if fd, err = dial(o.To); err != nil {
			return a, err
		}
		sockets[o.To] = fd
	}
	now, err := monotonic()
	if err != nil {
		return a, err
	}
	var packet []byte
	var calls int64
	send := func(number uint32) error {
		setNumber(packet, number)
		before := now()
		err := write(fd, packet)
		calls += now() - before
		return err
	}
	lead := newSchedule(o.Schedule.Rate, leadTime)
	lead.Start = now() + int64(time.Millisecond)
	packet = payload(0)
	if _, err := lead.run(now, send); err != nil {
		return a, err
	}
	packet, calls = payload(o.Run), 0
	a.Schedule = o.Schedule
	a.Schedule.Start = lead.Due(lead.Packets)
	a.Sent, err = a.Schedule.run(now, send)
	if a.Sent.Sent > 0 {
		a.CallNS = float64(calls) / float64(a.Sent.Sent)
	}
	return a, err
}

// setPriority sets the nice value of the calling thread, and that of its session if
// the scheduler groups by session.
func setPriority() error {
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, nice); err != nil {
		return err
	}
	err := os.WriteFile("/proc/self/autogroup", []byte(strconv.Itoa(nice)), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// setCPUs sets the CPU affinity of the calling thread.
func setCPUs(cpus []int) error {
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("run on CPUs %v: %w", cpus, err)
	}
	return nil
}

// dial opens a blocking socket to the end of the line.
func dial(to netip.AddrPort) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open a socket: %w", err)
	}
	if err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, ttl); err == nil {
		err = unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("connect to %s: %w", to, err)
	}
	return fd, nil
}

// write sends a packet with a raw system call; otherwise Go's scheduler would hand
// the thread's work to another thread. A packet that a device drops at once counts
// as lost, not as an error.
func write(fd int, packet []byte) error {
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&packet[0])), uintptr(len(packet)))
		switch errno {
		case 0, unix.ENOBUFS:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}

// monotonic returns a function that reads CLOCK_MONOTONIC in ns, the taps' clock,
// without a system call: Go's own clock differs by a constant.
func monotonic() (now func() int64, err error) {
	base := time.Now()
	best, zero := time.Hour, int64(0)
	for range 100 {
		var t unix.Timespec
		before := time.Since(base)
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
			return nil, fmt.Errorf("read the clock: %w", err)
		}
		after := time.Since(base)
		if after-before < best {
			best = after - before
			zero = t.Nano() - int64(before+after)/2
		}
	}
	return func() int64 { return zero + int64(time.Since(base)) }, nil
}
