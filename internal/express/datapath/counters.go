package datapath

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// Counters are the regular packets seen at one device.
type Counters struct {
	Packets uint64
	Reasons map[string]uint64 // those that are not zero
}

// deviceMask is bpf/lib/maps.h's DEVICE_MASK, the others are its DEV_QUEUE and
// DEV_TUNNEL.
const (
	deviceMask   = 0xffff
	deviceQueue  = 1 << 0
	deviceTunnel = 1 << 1
)

// counterSlots tells which counters are given away, and guards the table of
// devices.
type counterSlots struct {
	mu   sync.Mutex
	used map[uint16]int // ifindex by number
}

// Delivery is how packets reach the container behind a port, and what they look
// like at an uplink.
type Delivery struct {
	// Bare means that packets have no MAC header at the device.
	Bare bool
	// Queue means that packets must be delivered through the port's queue,
	// because it has a qdisc or filters that would be skipped otherwise.
	Queue bool
	// Tunnel means that the device is VXLAN's, and that express packets may skip
	// it: they are put straight on the wire beneath.
	Tunnel bool
	// MAC is the address of the container's device. Packets for another one stay
	// regular. It is 0 if it is not known, and then they do not.
	MAC [6]byte
	// Longest is the longest packet that the container's device takes, from the IP
	// header on, if that is less than its port takes; 0 otherwise.
	Longest uint16
}

// Track makes the counters of a device, unless it has them, and says how
// packets are delivered by it. Two devices whose numbers are the same modulo
// 65536 share a place, which only one of them can have.
func (d *Datapath) Track(ifindex int, how Delivery) error {
	if ifindex > mostIfindex {
		return fmt.Errorf("tracking device %d: its number is above %d; make it anew without naming one", ifindex, mostIfindex)
	}
	c := &d.counters
	c.mu.Lock()
	defer c.mu.Unlock()
	device := d.devices[ifindex&deviceMask]
	if holder, tracked := c.holder(device); tracked && holder != ifindex {
		return fmt.Errorf("tracking device %d: device %d has its place, as their numbers are the same modulo 65536; make one of them anew, so that it gets another number", ifindex, holder)
	}
	if device.Ifindex != uint32(ifindex) {
		number, err := d.freeCounters()
		if err != nil {
			return fmt.Errorf("counting at device %d: %w", ifindex, err)
		}
		device = expressDevice{Ifindex: uint32(ifindex), Counters: number}
	}
	c.used[device.Counters] = ifindex
	device.Flags = 0
	if how.Queue {
		device.Flags = deviceQueue
	}
	if how.Tunnel {
		device.Flags |= deviceTunnel
	}
	device.Mac = binary.NativeEndian.Uint32(how.MAC[:])
	device.MacEnd = binary.NativeEndian.Uint16(how.MAC[4:])
	device.Longest = how.Longest
	if err := d.setDevice(ifindex, device); err != nil {
		return err
	}
	d.bare[ifindex] = how.Bare
	return nil
}

// Untrack gives up the counters and flags of a device.
func (d *Datapath) Untrack(ifindex int) error {
	c := &d.counters
	c.mu.Lock()
	defer c.mu.Unlock()
	device := d.devices[ifindex&deviceMask]
	if device.Ifindex != uint32(ifindex) {
		return nil
	}
	delete(c.used, device.Counters)
	delete(d.bare, ifindex)
	return d.setDevice(ifindex, expressDevice{})
}

// Tracked lists the devices that have counters, those of an earlier daemon
// included.
func (d *Datapath) Tracked() []int {
	d.counters.mu.Lock()
	defer d.counters.mu.Unlock()
	return slices.Collect(maps.Values(d.counters.used))
}

// holder returns the device that has a place in the table of devices.
func (c *counterSlots) holder(device expressDevice) (ifindex int, tracked bool) {
	ifindex, tracked = c.used[device.Counters]
	return ifindex, tracked && device.Ifindex == uint32(ifindex)
}

// setDevice tells the programs about a device.
func (d *Datapath) setDevice(ifindex int, device expressDevice) error {
	place := ifindex & deviceMask
	if err := d.objs.Devices.Put(uint32(place), device); err != nil {
		return fmt.Errorf("telling the programs about device %d: %w", ifindex, err)
	}
	if d.devices[place] = device; device.Ifindex == 0 {
		delete(d.devices, place)
	}
	return nil
}

// adoptDevices finds out what an earlier daemon has told the programs.
func (d *Datapath) adoptDevices() error {
	d.devices, d.bare = make(map[int]expressDevice), make(map[int]bool)
	d.counters.used = make(map[uint16]int)
	if !d.adopted {
		return nil
	}
	n := int(d.objs.Devices.MaxEntries())
	b, err := unix.Mmap(d.objs.Devices.FD(), 0, n*int(d.objs.Devices.ValueSize()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mapping %s: %w", d.objs.Devices, err)
	}
	defer unix.Munmap(b)
	for place, device := range unsafe.Slice((*expressDevice)(unsafe.Pointer(&b[0])), n) {
		if device.Ifindex != 0 {
			d.devices[place] = device
			d.counters.used[device.Counters] = int(device.Ifindex)
		}
	}
	return nil
}

// freeCounters returns the number of counters that nobody has, at zero.
func (d *Datapath) freeCounters() (uint16, error) {
	most := d.objs.Regular.MaxEntries()
	for number := uint16(0); uint32(number) < most; number++ {
		if _, taken := d.counters.used[number]; !taken {
			return number, d.objs.Regular.Put(uint32(number), expressCounters{})
		}
	}
	return 0, fmt.Errorf("all of the %d counters are taken", most)
}

// Counters reads the regular packets of a device; none if it is not tracked.
func (d *Datapath) Counters(ifindex int) (Counters, error) {
	counters := Counters{Reasons: make(map[string]uint64)}
	d.counters.mu.Lock()
	device := d.devices[ifindex&deviceMask]
	d.counters.mu.Unlock()
	if device.Ifindex != uint32(ifindex) {
		return counters, nil
	}
	var kernel expressCounters
	if err := d.objs.Regular.Lookup(uint32(device.Counters), &kernel); err != nil {
		return counters, fmt.Errorf("reading the counters of device %d: %w", ifindex, err)
	}
	for reason, n := range kernel.Reasons {
		counters.Packets += n
		if n > 0 {
			counters.Reasons[reasonNames[reason]] = n
		}
	}
	return counters, nil
}

// Event is a message of the programs to the daemon.
type Event struct {
	// Closed means that a SYN, FIN or RST ended the connection of Slot. If
	// neither Closed nor Progress is set, the connection of Key has become a
	// candidate for composing.
	Closed bool
	// Reset means that it was a RST; Stray, that its receiver will refuse its
	// sequence number.
	Reset, Stray bool
	// Progress means that the sequence numbers of the TCP connection of Slot
	// have advanced so much since the last such event that conntrack must
	// forget the acknowledgements that it remembers.
	Progress bool

	Slot uint32
	Key  Key
	// Addrs6 are a candidate's addresses if it is of IPv6.
	Addrs6 [4]uint64
}

// Key is one direction of a connection in the programs' form.
type Key struct {
	Addrs uint64 // source, destination << 32, in network order; of IPv6 their digest
	Ports uint32 // source, destination << 16, in network order
	Side  uint32 // ifindex of the container's port << SideShift, or 0; and flags
}

// What is in a key's Side: bpf/lib/packet.h's UDP_SIDE, IPV6_SIDE, SIDE_SHIFT.
const (
	SideUDP   = 1 << 0
	SideIPv6  = 1 << 1
	SideShift = 2
)

// mostIfindex is the highest number of a device that fits into a key's Side.
const mostIfindex = 1<<(32-SideShift) - 1

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
	reset := e.Kind == expressEventKindEVENT_RESET || e.Kind == expressEventKindEVENT_STRAY_RESET
	event := Event{
		Closed:   reset || e.Kind == expressEventKindEVENT_CLOSED,
		Reset:    reset,
		Stray:    e.Kind == expressEventKindEVENT_STRAY_RESET,
		Progress: e.Kind == expressEventKindEVENT_PROGRESS,
		Slot:     e.Slot,
		Key:      Key{Addrs: e.Key.Addrs, Ports: e.Key.Ports, Side: e.Key.Side},
	}
	if len(record.RawSample) >= int(unsafe.Sizeof(expressEvent6{})) {
		event.Addrs6 = (*expressEvent6)(unsafe.Pointer(&record.RawSample[0])).Addrs
	}
	return event, nil
}
