package copier

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// device is a stack that has a helper program copy, by a device. The helper takes
// from the submission queue once it has said that it is ready, and completes in the
// order of submissions. Before, and when it has ended, the worker's processor copies:
// what was under way then it does anew.
type device struct {
	*software
	log     *slog.Logger
	helper  *exec.Cmd
	says    bytes.Buffer
	orders  int // socket to the helper
	state   atomic.Int32
	ready   string // the device's name, once the helper is
	closing atomic.Bool
	over    sync.WaitGroup

	// The worker's thread's own.
	serves bool // the helper takes submissions
	passes int
	files  map[uint32]int // of regions
	seen   uint32         // completions when that was looked at last
	since  time.Time      // when it was seen first that there are no more
}

// States of a helper.
const (
	helperStarts int32 = iota
	helperReady
	helperGone
)

const (
	// deviceDepth is how many copies of a connection are under way at a time.
	deviceDepth = 16
	// helperPatience is how long it may take for a copy, an order, or its end.
	helperPatience = 5 * time.Second
	// passesPerTime is how often the worker looks at copies between two looks at
	// the clock.
	passesPerTime = 1024
)

// newDevice starts a helper.
func newDevice(log *slog.Logger, program string, q *queues) (*device, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket for a helper: %w", err)
	}
	d := &device{software: newSoftware(q), log: log, helper: exec.Command(program, "serve"), orders: pair[0], files: make(map[uint32]int)}
	theirs := os.NewFile(uintptr(pair[1]), "orders")
	defer theirs.Close()
	file, err := unix.FcntlInt(uintptr(q.file), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		unix.Close(d.orders)
		return nil, fmt.Errorf("give a helper the queues: %w", err)
	}
	queues := os.NewFile(uintptr(file), "queues")
	defer queues.Close()
	d.helper.ExtraFiles = []*os.File{theirs, queues}
	d.helper.Stderr = &d.says
	if err := d.helper.Start(); err != nil {
		unix.Close(d.orders)
		return nil, err
	}
	d.over.Go(d.attend)
	return d, nil
}

// attend hears of the helper's beginning and of its end.
func (d *device) attend() {
	var name [256]byte
	n, err := unix.Read(d.orders, name[:])
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(d.orders, name[:])
	}
	if n > 0 {
		d.ready = string(name[:n])
		d.state.Store(helperReady)
	}
	err = d.helper.Wait()
	d.state.Store(helperGone)
	if !d.closing.Load() {
		d.log.Warn("pipe: no device copies any more, a processor does",
			"helper", d.helper.Path, "error", err, "said", string(bytes.TrimSpace(d.says.Bytes())))
	}
}

// name of the device; "" as long as processors copy.
func (d *device) name() string {
	if d.state.Load() != helperReady {
		return ""
	}
	return d.ready
}

func (d *device) add(region uint32, m *shared) error {
	if err := d.software.add(region, m); err != nil {
		return err
	}
	d.files[region] = m.kept
	d.tellOf(region)
	return nil
}

func (d *device) drop(region uint32) {
	d.software.drop(region)
	delete(d.files, region)
	d.tell(order{Op: orderDrop, Region: region}, -1)
}

// tellOf gives the helper a region's memory.
func (d *device) tellOf(region uint32) {
	if !d.serves {
		return
	}
	d.tell(order{Op: orderAdd, Region: region, Size: uint64(len(d.regions[region]))}, d.files[region])
}

// tell gives an order, and a file unless that is -1.
func (d *device) tell(o order, file int) {
	if !d.serves {
		return
	}
	b := binary.NativeEndian.AppendUint32(nil, o.Op)
	b = binary.NativeEndian.AppendUint32(b, o.Region)
	b = binary.NativeEndian.AppendUint64(b, o.Size)
	var oob []byte
	if file >= 0 {
		oob = unix.UnixRights(file)
	}
	for end := time.Now().Add(helperPatience); ; {
		err := unix.Sendmsg(d.orders, b, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ETOOMANYREFS) || time.Now().After(end) {
			d.lose(fmt.Errorf("give the helper an order: %w", err))
			return
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(d.orders), Events: unix.POLLOUT}}, 1)
	}
}

// lose ends a helper that does not do what it shall.
func (d *device) lose(err error) {
	d.log.Error("pipe: end a helper", "helper", d.helper.Path, "error", err)
	_ = d.helper.Process.Kill()
}

func (d *device) depth() int {
	if d.serves {
		return deviceDepth
	}
	return d.software.depth()
}

func (d *device) kick() {
	switch state := d.state.Load(); {
	case state == helperReady && !d.serves:
		d.handOver()
	case state == helperGone && d.serves:
		// It has its memory no more, so nothing of it comes late.
		d.serves = false
		d.q.Taken.N.Store(d.q.Completed.N.Load())
	}
	if !d.serves {
		d.software.kick()
		return
	}
	if d.q.Taken.N.Load() != d.q.Submitted.N.Load() && d.q.Sleeps.N.CompareAndSwap(1, 0) {
		d.tell(order{Op: orderWake}, -1)
	}
	d.watch()
}

// handOver has the helper take what is submitted from now on.
func (d *device) handOver() {
	d.serves = true
	for region := range d.regions {
		d.tellOf(region)
	}
	d.tell(order{Op: orderBegin}, -1)
}

// watch loses a helper that does not go on with what was submitted.
func (d *device) watch() {
	if d.passes++; d.passes%passesPerTime != 0 {
		return
	}
	switch done := d.q.Completed.N.Load(); {
	case done != d.seen || done == d.q.Submitted.N.Load():
		d.seen, d.since = done, time.Time{}
	case d.since.IsZero():
		d.since = time.Now()
	case time.Since(d.since) > helperPatience:
		d.lose(fmt.Errorf("no copy for %v", helperPatience))
		d.since = time.Time{}
	}
}

// close ends the helper.
func (d *device) close() error {
	d.closing.Store(true)
	_ = unix.Shutdown(d.orders, unix.SHUT_RDWR)
	timer := time.AfterFunc(helperPatience, func() { _ = d.helper.Process.Kill() })
	d.over.Wait()
	timer.Stop()
	unix.Close(d.orders)
	return nil
}
