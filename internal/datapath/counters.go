package datapath

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
)

// Counters are the regular packets seen at one device.
type Counters struct {
	Packets uint64
	Reasons map[string]uint64 // those that are not zero
}

// Track makes the counters and flags of a device. queue tells that packets
// must be delivered through the device's queue, because it has a qdisc or
// filters that would be skipped otherwise.
func (d *Datapath) Track(ifindex int, queue bool) error {
	var flags uint32
	if queue {
		flags = deviceQueue
	}
	if err := d.objs.Devices.Put(uint32(ifindex), flags); err != nil {
		return fmt.Errorf("setting the flags of device %d: %w", ifindex, err)
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	err = d.objs.Regular.Update(uint32(ifindex), make([]expressCounters, cpus), ebpf.UpdateNoExist)
	if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		return fmt.Errorf("making the counters of device %d: %w", ifindex, err)
	}
	return nil
}

// deviceQueue is bpf/lib/maps.h's DEV_QUEUE.
const deviceQueue = 1 << 0

// Untrack removes the counters and flags of a device.
func (d *Datapath) Untrack(ifindex int) error {
	for _, m := range []*ebpf.Map{d.objs.Devices, d.objs.Regular} {
		if err := m.Delete(uint32(ifindex)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("removing device %d from %s: %w", ifindex, m, err)
		}
	}
	return nil
}

// Counters reads the regular packets of a device; none if it is not tracked.
func (d *Datapath) Counters(ifindex int) (Counters, error) {
	c := Counters{Reasons: make(map[string]uint64)}
	var perCPU []expressCounters
	err := d.objs.Regular.Lookup(uint32(ifindex), &perCPU)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("reading the counters of device %d: %w", ifindex, err)
	}
	for _, cpu := range perCPU {
		c.Packets += cpu.Packets
		for reason, n := range cpu.Reasons {
			if n > 0 {
				c.Reasons[reasonNames[reason]] += n
			}
		}
	}
	return c, nil
}

// Event is what the programs tell the daemon.
type Event struct {
	// Closed means that a SYN, FIN or RST ended the connection of Slot; else
	// the connection of Key has become a candidate for composing.
	Closed bool
	Slot   uint32
	Key    Key
}

// Key is one direction of a connection in the programs' form.
type Key struct {
	Addrs uint64 // source, destination << 32, in network order
	Ports uint32 // source, destination << 16, in network order
	Side  uint32 // 2 * ifindex of the container's port, or 0; + 1 for UDP
}

// ReadEvent waits for the next event. It returns ringbuf.ErrClosed after Close.
func (d *Datapath) ReadEvent() (Event, error) {
	var record ringbuf.Record
	if err := d.events.ReadInto(&record); err != nil {
		return Event{}, err
	}
	if len(record.RawSample) < int(unsafe.Sizeof(expressEvent{})) {
		return Event{}, fmt.Errorf("event of %d bytes: too short", len(record.RawSample))
	}
	e := (*expressEvent)(unsafe.Pointer(&record.RawSample[0]))
	return Event{
		Closed: e.Kind == expressEventKindEVENT_CLOSED,
		Slot:   e.Slot,
		Key:    Key{Addrs: e.Key.Addrs, Ports: e.Key.Ports, Side: e.Key.Side},
	}, nil
}
