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

// generatorArgs make this executable call Generate.
var generatorArgs = []string{"latency", "generate"}

// ttl of the packets: above the hops of the longest line.
const ttl = 255

// nice of the generator, so that others on its CPU hardly delay it.
const nice = -20

// leadTime is how long packets at the same rate, which do not count, go ahead of
// the others.
const leadTime = 10 * time.Millisecond

// order is one line to a generator.
type order struct {
	To       netip.AddrPort `json:"to"`
	Run      uint32         `json:"run"` // 0 warms up: the taps let it pass
	Schedule Schedule       `json:"schedule"`
	CPUs     []int          `json:"cpus"`
}

// answer is one line from a generator.
type answer struct {
	Schedule Schedule `json:"schedule"` // with its start
	Sent     sent     `json:"sent"`
	// CallNS is the mean time of a call that sends, with all the forwarding
	// that the kernel does in it.
	CallNS float64 `json:"call_ns"`
	Error  string  `json:"error,omitempty"`
}

// Generate is a generator process in a line's first node: it carries out the
// orders of in and writes the answers to out. When in ends it ends the process
// at once.
func Generate(in io.Reader, out io.Writer) {
	debug.SetGCPercent(-1) // a collection would be seen in the latencies
	orders := make(chan order)
	go func() {
		runtime.LockOSThread() // the one that has the CPUs
		answers := json.NewEncoder(out)
		sockets := map[netip.AddrPort]int{} // a connection is known from its first packets
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

// setPriority of the calling thread, and of its session where the scheduler knows
// such groups.
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

// setCPUs binds the calling thread.
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

// write sends a packet without telling Go's scheduler, which would hand the
// thread's work to another one. What a device drops at once is lost, no error.
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

// monotonic returns CLOCK_MONOTONIC in ns, the clock of the taps, without a
// system call: Go's own clock is the same with another zero.
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
