package datapath

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"
)

// Counters are the regular packets seen at one device.
type Counters struct {
	Packets uint64
	Reasons map[string]uint64 // those that are not zero
}

// deviceMask is bpf/lib/maps.h's DEVICE_MASK, deviceQueue its DEV_QUEUE.
const (
	deviceMask  = 0xffff
	deviceQueue = 1 << 0
)

// counterSlots gives devices their counters; number 0 is nobody's.
type counterSlots struct {
	mu   sync.Mutex
	used map[uint16]int // ifindex by number
	of   map[int]uint16 // number by ifindex
}

// Track makes the counters of a device, unless it has them, and sets its
// flags. queue tells that packets must be delivered through the device's
// queue, because it has a qdisc or filters that would be skipped otherwise.
func (d *Datapath) Track(ifindex int, queue bool) error {
	number, err := d.counterSlot(ifindex)
	if err != nil {
		return err
	}
	device := expressDevice{Counters: number}
	if queue {
		device.Flags = deviceQueue
	}
	if err := d.objs.Devices.Put(uint32(ifindex&deviceMask), device); err != nil {
		return fmt.Errorf("setting the flags of device %d: %w", ifindex, err)
	}
	return nil
}

// counterSlot returns the number of a device's counters: those that an earlier
// daemon gave it, or new ones at zero.
func (d *Datapath) counterSlot(ifindex int) (uint16, error) {
	c := &d.counters
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of, c.used = make(map[int]uint16), make(map[uint16]int)
	}
	if number, ok := c.of[ifindex]; ok {
		return number, nil
	}
	take := func(number uint16) uint16 {
		c.of[ifindex], c.used[number] = number, ifindex
		return number
	}
	if d.adopted {
		var device expressDevice
		if err := d.objs.Devices.Lookup(uint32(ifindex&deviceMask), &device); err != nil {
			return 0, fmt.Errorf("looking for the counters of device %d: %w", ifindex, err)
		}
		if _, taken := c.used[device.Counters]; device.Counters != 0 && !taken {
			return take(device.Counters), nil
		}
	}
	for number := uint16(1); uint32(number) < d.objs.Regular.MaxEntries(); number++ {
		if _, taken := c.used[number]; taken {
			continue
		}
		if err := d.objs.Regular.Put(uint32(number), expressCounters{}); err != nil {
			return 0, fmt.Errorf("clearing the counters of device %d: %w", ifindex, err)
		}
		return take(number), nil
	}
	return 0, fmt.Errorf("counting at device %d: %d devices are hooked already", ifindex, len(c.used))
}

// Untrack gives up the counters and flags of a device.
func (d *Datapath) Untrack(ifindex int) error {
	c := &d.counters
	c.mu.Lock()
	defer c.mu.Unlock()
	number, ok := c.of[ifindex]
	if !ok {
		return nil
	}
	if err := d.objs.Devices.Put(uint32(ifindex&deviceMask), expressDevice{}); err != nil {
		return fmt.Errorf("clearing the flags of device %d: %w", ifindex, err)
	}
	delete(c.of, ifindex)
	delete(c.used, number)
	return nil
}

// Counters reads the regular packets of a device; none if it is not tracked.
func (d *Datapath) Counters(ifindex int) (Counters, error) {
	counters := Counters{Reasons: make(map[string]uint64)}
	d.counters.mu.Lock()
	number, ok := d.counters.of[ifindex]
	d.counters.mu.Unlock()
	if !ok {
		return counters, nil
	}
	var kernel expressCounters
	if err := d.objs.Regular.Lookup(uint32(number), &kernel); err != nil {
		return counters, fmt.Errorf("reading the counters of device %d: %w", ifindex, err)
	}
	counters.Packets = kernel.Packets
	for reason, n := range kernel.Reasons {
		if n > 0 {
			counters.Reasons[reasonNames[reason]] = n
		}
	}
	return counters, nil
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
