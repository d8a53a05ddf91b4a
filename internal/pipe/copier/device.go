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

// device is a stack that copies with a device, by a helper program. Once the helper has
// reported that it is ready, it takes entries from the submission queue and completes them
// in order. Before that, and after the helper has ended, the worker's thread copies; it
// repeats the copies that were in progress when the helper ended.
type device struct {
	*software
	log     *slog.Logger
	helper  *exec.Cmd
	stderr  bytes.Buffer
	orders  int // socket to the helper, for orders
	state   atomic.Int32
	ready   string // the device's name, once the helper is ready
	closing atomic.Bool
	over    sync.WaitGroup

	// Used by the worker's thread only.
	serving   bool // the helper takes submissions
	passes    int
	files     map[uint32]int // by region
	completed uint32         // completions at the last check
	since     time.Time      // start of the stall; zero: there is progress
}

// States of a helper.
const (
	helperStarts int32 = iota
	helperReady
	helperGone
)

const (
	// deviceDepth bounds the copies of a direction in progress at a time.
	deviceDepth = 16
	// helperTimeout limits a copy, the delivery of an order, and the helper's exit.
	helperTimeout = 5 * time.Second
	// passesPerCheck is the number of the worker's passes between two checks for a stall.
	passesPerCheck = 1024
)

// newDevice starts a helper for the queues, which have to be in a file.
func newDevice(log *slog.Logger, program string, q *queues) (*device, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("create a socket for the helper: %w", err)
	}
	d := &device{software: newSoftware(q), log: log, helper: exec.Command(program, "serve"), orders: pair[0], files: make(map[uint32]int)}
	theirs := os.NewFile(uintptr(pair[1]), "orders")
	defer theirs.Close()
	file, err := unix.FcntlInt(uintptr(q.file), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		unix.Close(d.orders)
		return nil, fmt.Errorf("duplicate the queues' file for the helper: %w", err)
	}
	queues := os.NewFile(uintptr(file), "queues")
	defer queues.Close()
	d.helper.ExtraFiles = []*os.File{theirs, queues}
	d.helper.Stderr = &d.stderr
	if err := d.helper.Start(); err != nil {
		unix.Close(d.orders)
		return nil, err
	}
	d.over.Go(d.wait)
	return d, nil
}

// wait receives the device's name when the helper is ready, and then waits for its exit.
func (d *device) wait() {
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
		d.log.Warn("pipe: the copy helper has exited; copying with the CPU",
			"helper", d.helper.Path, "error", err, "stderr", string(bytes.TrimSpace(d.stderr.Bytes())))
	}
}

// name returns the device's name; "" while the CPU copies.
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
	d.sendRegion(region)
	return nil
}

func (d *device) drop(region uint32) {
	d.software.drop(region)
	delete(d.files, region)
	d.send(order{Op: orderDrop, Region: region}, -1)
}

// sendRegion passes a region's file to the helper.
func (d *device) sendRegion(region uint32) {
	if !d.serving {
		return
	}
	d.send(order{Op: orderAdd, Region: region, Size: uint64(len(d.regions[region]))}, d.files[region])
}

// send sends an order, and a file unless that is -1. It does nothing unless the helper is
// serving.
func (d *device) send(o order, file int) {
	if !d.serving {
		return
	}
	b := binary.NativeEndian.AppendUint32(nil, o.Op)
	b = binary.NativeEndian.AppendUint32(b, o.Region)
	b = binary.NativeEndian.AppendUint64(b, o.Size)
	var oob []byte
	if file >= 0 {
		oob = unix.UnixRights(file)
	}
	for end := time.Now().Add(helperTimeout); ; {
		err := unix.Sendmsg(d.orders, b, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ETOOMANYREFS) || time.Now().After(end) {
			d.kill(fmt.Errorf("send the helper an order: %w", err))
			return
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(d.orders), Events: unix.POLLOUT}}, 1)
	}
}

// kill ends a helper that fails; wait then reports its exit.
func (d *device) kill(err error) {
	d.log.Error("pipe: kill the copy helper", "helper", d.helper.Path, "error", err)
	_ = d.helper.Process.Kill()
}

func (d *device) depth() int {
	if d.serving {
		return deviceDepth
	}
	return d.software.depth()
}

func (d *device) kick() {
	switch state := d.state.Load(); {
	case state == helperReady && !d.serving:
		d.activate()
	case state == helperGone && d.serving:
		// Its mappings are gone, so that no late write of it can follow.
		d.serving = false
		d.q.Taken.N.Store(d.q.Completed.N.Load())
	}
	if !d.serving {
		d.software.kick()
		return
	}
	if d.q.Taken.N.Load() != d.q.Submitted.N.Load() && d.q.Sleeps.N.CompareAndSwap(1, 0) {
		d.send(order{Op: orderWake}, -1)
	}
	d.checkProgress()
}

// activate makes the helper take the submissions from now on.
func (d *device) activate() {
	d.serving = true
	for region := range d.regions {
		d.sendRegion(region)
	}
	d.send(order{Op: orderBegin}, -1)
}

// checkProgress kills a helper that has not completed a submitted entry for helperTimeout.
func (d *device) checkProgress() {
	if d.passes++; d.passes%passesPerCheck != 0 {
		return
	}
	switch done := d.q.Completed.N.Load(); {
	case done != d.completed || done == d.q.Submitted.N.Load():
		d.completed, d.since = done, time.Time{}
	case d.since.IsZero():
		d.since = time.Now()
	case time.Since(d.since) > helperTimeout:
		d.kill(fmt.Errorf("no completion for %v", helperTimeout))
		d.since = time.Time{}
	}
}

// close stops the helper: it exits when the socket closes, and is killed after
// helperTimeout.
func (d *device) close() error {
	d.closing.Store(true)
	_ = unix.Shutdown(d.orders, unix.SHUT_RDWR)
	timer := time.AfterFunc(helperTimeout, func() { _ = d.helper.Process.Kill() })
	d.over.Wait()
	timer.Stop()
	unix.Close(d.orders)
	return nil
}
