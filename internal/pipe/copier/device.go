package copier

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// device is a stack that copies with a device, by a helper program (process.go). Once a
// helper has reported that it is ready, it takes entries from the submission queue and
// completes them in order. Before that, and after the helper has ended, the worker's thread
// copies; it repeats the copies that were in progress when the helper ended.
type device struct {
	*software
	log     *slog.Logger
	program string
	newest  atomic.Pointer[helper]
	closing chan struct{}
	over    sync.WaitGroup

	// Used by the worker's thread only.
	serving   *helper // takes submissions; nil: the thread copies
	passes    int
	files     map[uint32]int // by region
	completed uint32         // completions at the last check
	since     time.Time      // start of the stall; zero: there is progress
}

const (
	// deviceDepth bounds the copies of a direction in progress at a time.
	deviceDepth = 16
	// helperTimeout limits a copy, the delivery of an order, and the helper's exit.
	helperTimeout = 5 * time.Second
	// passesPerCheck is the number of the worker's passes between two checks for a stall.
	passesPerCheck = 1024
)

// newDevice starts a helper for the queues, which have to be in a file.
func newDevice(log *slog.Logger, program string, q *queues) *device {
	d := &device{software: newSoftware(q), log: log, program: program, files: make(map[uint32]int), closing: make(chan struct{})}
	d.over.Go(d.keepHelper)
	return d
}

// name returns the device's name; "" while the CPU copies.
func (d *device) name() string {
	if h := d.newest.Load(); h != nil {
		return h.name()
	}
	return ""
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
	d.send(order{Op: orderAdd, Region: region, Size: uint64(len(d.regions[region]))}, d.files[region])
}

// send sends an order, and a file unless that is -1. It does nothing unless the helper is
// serving.
func (d *device) send(o order, file int) {
	if d.serving == nil {
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
		err := unix.Sendmsg(d.serving.orders, b, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ETOOMANYREFS) || time.Now().After(end) {
			d.kill(fmt.Errorf("send the helper an order: %w", err))
			return
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(d.serving.orders), Events: unix.POLLOUT}}, 1)
	}
}

// kill ends the serving helper, which fails.
func (d *device) kill(err error) {
	d.log.Error("pipe: kill the copy helper", "helper", d.program, "error", err)
	_ = d.serving.cmd.Process.Kill()
}

func (d *device) depth() int {
	if d.serving != nil {
		return deviceDepth
	}
	return d.software.depth()
}

// mostPiece is large for a device: the driver's calls for a copy take a processor some
// microseconds, whatever its length.
func (d *device) mostPiece() uint64 {
	if d.serving != nil {
		return devicePiece
	}
	return d.software.mostPiece()
}

func (d *device) kick() {
	if d.serving != nil && d.serving.gone() {
		// Its mappings are gone, so that no late write of it can follow.
		unix.Close(d.serving.orders)
		d.serving = nil
		d.q.Taken.N.Store(d.q.Completed.N.Load())
	}
	if h := d.newest.Load(); d.serving == nil && h != nil && h.begin() {
		d.activate(h)
	}
	if d.serving == nil {
		d.software.kick()
		return
	}
	if d.q.Taken.N.Load() != d.q.Submitted.N.Load() && d.q.Sleeps.N.CompareAndSwap(1, 0) {
		d.send(order{Op: orderWake}, -1)
	}
	d.checkProgress()
}

// activate makes the helper take the submissions from now on.
func (d *device) activate(h *helper) {
	d.serving = h
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

// close stops the helper. It requires that the worker's thread has ended.
func (d *device) close() error {
	close(d.closing)
	d.over.Wait()
	if d.serving != nil {
		unix.Close(d.serving.orders)
	}
	return nil
}
