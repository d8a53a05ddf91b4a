package profile

import (
	"fmt"
	"runtime"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
)

// Number of datagrams that cross the loopback device for the calibration. Batches
// with and without waypoints alternate.
const (
	calibrateBatches = 16
	calibrateBatch   = 250
)

// calibrate measures the cost of the waypoints themselves: datagrams cross the
// loopback device of a scratch namespace, through waypoints with nothing between
// them.
func calibrate() (c Cost, err error) {
	err = netns.Scratch(func() error {
		loop, err := openLoop()
		if err != nil {
			return err
		}
		defer loop.close()
		if c, err = measureBetween(loop); err != nil {
			return err
		}
		c.PassNS, err = measurePass(loop)
		return err
	})
	if err != nil {
		return Cost{}, fmt.Errorf("calibrate: %w", err)
	}
	return c, nil
}

// row returns waypoints at the output hook with nothing between them, and one at
// the end.
func row(length int) []station {
	stations := []station{{hook: link.NetfilterInetLocalIn, priority: lastPriority, role: ending}}
	for i := range length {
		s := station{hook: link.NetfilterInetLocalOut, priority: firstPriority + int32(i)}
		if i == 0 {
			s.role = beginning
		}
		stations = append(stations, s)
	}
	return stations
}

// measureBetween measures the time between two waypoints with nothing between them.
// Tracepoints run their programs one after the other, too.
func measureBetween(loop *loop) (c Cost, err error) {
	w, err := load(loading{quota: 1000})
	if err != nil {
		return Cost{}, err
	}
	defer w.Close()
	if err := w.attach(row(8)); err != nil {
		return Cost{}, err
	}
	if err := w.attachTracepoints(); err != nil { // attach a second program to each
		return Cost{}, err
	}
	var hooks, tracepoints []float64
	for range calibrateBatches {
		if err := loop.send(calibrateBatch); err != nil {
			return Cost{}, err
		}
		paths, err := w.collect()
		if err != nil {
			return Cost{}, err
		}
		for _, path := range paths {
			for i, s := range path[1:] {
				before := path[i]
				if s.Waypoint != before.Waypoint || s.At != before.At {
					continue
				}
				between := float64(s.EnteredNs - before.EnteredNs - uint64(before.BodyNs))
				if s.Waypoint == waypointWaypointWAYPOINT_HOOK {
					hooks = append(hooks, between)
				} else {
					tracepoints = append(tracepoints, between)
				}
			}
		}
	}
	c.HookNS, c.TracepointNS = median(hooks), median(tracepoints)
	return c, nil
}

// measurePass measures the cost of a waypoint for a packet that is not followed.
func measurePass(loop *loop) (ns float64, err error) {
	w, err := load(loading{quota: 0})
	if err != nil {
		return 0, err
	}
	defer w.Close()
	var with, without []float64
	for range calibrateBatches {
		spent, err := loop.time(calibrateBatch)
		if err != nil {
			return 0, err
		}
		without = append(without, spent)
		if err := w.attach(row(32)); err != nil {
			return 0, err
		}
		spent, err = loop.time(calibrateBatch)
		if err != nil {
			return 0, err
		}
		with = append(with, spent)
		if err := w.detach(); err != nil {
			return 0, err
		}
	}
	counted, err := w.count()
	if err != nil {
		return 0, err
	}
	runs := float64(counted.Runs) / (calibrateBatches * calibrateBatch)
	return max(0, (median(with)-median(without))/runs), nil
}

// loop is a socket that sends to itself.
type loop struct {
	fd      int
	address unix.Sockaddr
}

// openLoop opens a loop in the calling thread's namespace.
func openLoop() (*loop, error) {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return nil, fmt.Errorf("set lo up: %w", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a socket: %w", err)
	}
	l := &loop{fd: fd}
	err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	if err == nil {
		l.address, err = unix.Getsockname(fd)
	}
	if err == nil {
		err = unix.Connect(fd, l.address)
	}
	if err == nil { // bounds a wait without packets
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1})
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("connect a socket to itself: %w", err)
	}
	return l, nil
}

func (l *loop) close() { unix.Close(l.fd) }

// send sends datagrams and receives each.
func (l *loop) send(n int) error {
	var message [64]byte
	for range n {
		if _, err := unix.Write(l.fd, message[:]); err != nil {
			return fmt.Errorf("send: %w", err)
		}
		if _, err := unix.Read(l.fd, message[:]); err != nil {
			return fmt.Errorf("receive: %w", err)
		}
	}
	return nil
}

// time returns the processor time of the calling thread per datagram, in ns.
func (l *loop) time(n int) (float64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := threadTime()
	if err != nil {
		return 0, err
	}
	if err := l.send(n); err != nil {
		return 0, err
	}
	after, err := threadTime()
	return float64(after-before) / float64(n), err
}

// threadTime returns the processor time of the calling thread so far.
func threadTime() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0, fmt.Errorf("read the thread's processor time: %w", err)
	}
	return time.Duration(t.Nano()), nil
}
