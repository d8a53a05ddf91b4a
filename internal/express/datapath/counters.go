package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// Counters counts the regular packets of one device.
type Counters struct {
	Packets uint64
	Reasons map[string]uint64 // only those that are not zero
}

// deviceMask is DEVICE_MASK of bpf/lib/maps.h; the others are its DEV_*.
const (
	deviceMask    = 0xffff
	deviceQueue   = 1 << 0
	deviceTunnel  = 1 << 1
	deviceBridged = PathBridged
	deviceSpread  = 1 << 5
	deviceByRoute = 1 << 7
	devicePaused  = 1 << 8
	deviceJudged  = 1 << 9
	deviceEarly   = 1 << 10
	deviceOutside = 1 << 11
)

// counterSlots is which counters are in use. Its mutex also guards the table
// of devices.
type counterSlots struct {
	mu   sync.Mutex
	used map[uint16]int // ifindex by number
}

// Delivery is how packets reach the container behind a port, and which form
// they have at an uplink.
type Delivery struct {
	// Bare means that packets have no MAC header at the device.
	Bare bool
	// Bridged means that the device is a port of the containers' bridge: packets of
	// theirs that pass it are bridged.
	Bridged bool
	// Queue means that packets must be delivered through the port's queue,
	// because they would skip its qdisc or filters otherwise.
	Queue bool
	// Tunnel means that the device is a VXLAN or IPIP device that express packets may
	// skip: they leave by the device beneath it.
	Tunnel bool
	// ByRoute means that the device sends a packet where its route says: what goes express
	// has none, and skips the device, or stays regular.
	ByRoute bool
	// MAC is the address of the container's device; packets for another
	// address stay regular. It is 0 if it is not known; all packets may then
	// go express.
	MAC [6]byte
	// Longest is the length of the longest packet, from the IP header on, that reaches the
	// container's device or, if Bridged, leaves by the device, unless it is a GSO packet; 0
	// if that is not known.
	Longest uint16
}

func (d Delivery) form() form {
	switch {
	case d.Bare:
		return bare
	case d.Bridged:
		return bridged
	}
	return usual
}

// Track allocates the counters of a device, unless it has them, and sets how
// packets are delivered at it. Devices whose ifindexes are equal modulo 65536
// share an entry, which only one of them can have.
func (d *Datapath) Track(ifindex int, how Delivery) error {
	if ifindex > maxIfindex {
		return fmt.Errorf("tracking device %d: its ifindex is above %d; create it again without choosing one", ifindex, maxIfindex)
	}
	c := &d.counters
	c.mu.Lock()
	defer c.mu.Unlock()
	device := d.devices[ifindex&deviceMask]
	if holder, tracked := c.holder(device); tracked && holder != ifindex {
		return fmt.Errorf("tracking device %d: device %d has the same ifindex modulo 65536; create one of them again, so that it gets another ifindex", ifindex, holder)
	}
	if device.Ifindex != uint32(ifindex) {
		number, err := d.freeCounters()
		if err != nil {
			return fmt.Errorf("counting at device %d: %w", ifindex, err)
		}
		device = expressDevice{Ifindex: uint32(ifindex), Counters: number}
	}
	c.used[device.Counters] = ifindex
	device.Flags &= devicePaused | deviceJudged | deviceSpread | deviceEarly | deviceOutside
	if how.Queue {
		device.Flags |= deviceQueue
	}
	if how.Tunnel {
		device.Flags |= deviceTunnel
	}
	if how.ByRoute {
		device.Flags |= deviceByRoute
	}
	if how.Bridged {
		device.Flags |= deviceBridged
	}
	device.Mac = binary.NativeEndian.Uint32(how.MAC[:])
	device.MacEnd = binary.NativeEndian.Uint16(how.MAC[4:])
	device.Longest = how.Longest
	if err := d.setDevice(ifindex, device); err != nil {
		return err
	}
	d.forms[ifindex] = how.form()
	return nil
}

// Kept is why packets at a container's port have no Conentry: their reason.
type Kept struct {
	// Paused means that the container is paused.
	Paused bool
	// Judged means that rules that judge single packets keep some of its
	// connections regular: the table has been told which.
	Judged bool
}

// SetKept has packets at a tracked port counted accordingly.
func (d *Datapath) SetKept(ifindex int, k Kept) error {
	_, err := d.setFlags(ifindex, map[uint16]bool{devicePaused: k.Paused, deviceJudged: k.Judged})
	return err
}

// SetSpread says whether a tracked uplink has one of several next hops, so that the
// sender's hash is compared, and reports whether that has changed.
func (d *Datapath) SetSpread(ifindex int, spread bool) (changed bool, err error) {
	return d.setFlags(ifindex, map[uint16]bool{deviceSpread: spread})
}

// setFlags sets flags of a tracked device, and reports whether one has changed.
func (d *Datapath) setFlags(ifindex int, flags map[uint16]bool) (changed bool, err error) {
	d.counters.mu.Lock()
	defer d.counters.mu.Unlock()
	device := d.devices[ifindex&deviceMask]
	was := device.Flags
	for flag, set := range flags {
		if device.Flags &^= flag; set {
			device.Flags |= flag
		}
	}
	if device.Ifindex != uint32(ifindex) || device.Flags == was {
		return false, nil
	}
	return true, d.setDevice(ifindex, device)
}

// Untrack releases the counters and the entry of a device.
func (d *Datapath) Untrack(ifindex int) error {
	c := &d.counters
	c.mu.Lock()
	defer c.mu.Unlock()
	device := d.devices[ifindex&deviceMask]
	if device.Ifindex != uint32(ifindex) {
		return nil
	}
	delete(c.used, device.Counters)
	delete(d.forms, ifindex)
	return d.setDevice(ifindex, expressDevice{})
}

// Tracked lists the devices that have counters, including those of an earlier
// daemon.
func (d *Datapath) Tracked() []int {
	d.counters.mu.Lock()
	defer d.counters.mu.Unlock()
	return slices.Collect(maps.Values(d.counters.used))
}

// IsTracked reports whether a device has counters: it has them before a program is attached
// to it, and until after. Any goroutine may call it.
func (d *Datapath) IsTracked(ifindex int) bool {
	d.counters.mu.Lock()
	defer d.counters.mu.Unlock()
	_, tracked := d.counters.holder(d.devices[ifindex&deviceMask])
	return tracked && d.devices[ifindex&deviceMask].Ifindex == uint32(ifindex)
}

// holder returns the device that has an entry of the table of devices.
func (c *counterSlots) holder(device expressDevice) (ifindex int, tracked bool) {
	ifindex, tracked = c.used[device.Counters]
	return ifindex, tracked && device.Ifindex == uint32(ifindex)
}

// setDevice writes the entry of a device.
func (d *Datapath) setDevice(ifindex int, device expressDevice) error {
	place := ifindex & deviceMask
	if err := d.objs.Devices.Put(uint32(place), device); err != nil {
		return fmt.Errorf("writing the entry of device %d: %w", ifindex, err)
	}
	if d.devices[place] = device; device.Ifindex == 0 {
		delete(d.devices, place)
	}
	return nil
}

// adoptDevices reads the entries that an earlier daemon wrote.
func (d *Datapath) adoptDevices() error {
	d.devices, d.forms = make(map[int]expressDevice), make(map[int]form)
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
			device.Flags &^= devicePaused | deviceJudged | deviceEarly | deviceOutside // Track writes it
			d.devices[place] = device
			d.counters.used[device.Counters] = int(device.Ifindex)
		}
	}
	return nil
}

// freeCounters zeroes unused counters and returns their number.
func (d *Datapath) freeCounters() (uint16, error) {
	most := d.objs.Regular.MaxEntries()
	for number := uint16(0); uint32(number) < most; number++ {
		if _, taken := d.counters.used[number]; !taken {
			return number, d.objs.Regular.Put(uint32(number), make([]expressCounters, ebpf.MustPossibleCPU()))
		}
	}
	return 0, fmt.Errorf("all %d places for devices are taken: it stays regular until another one goes", most)
}

// Counters reads the regular packets of a device, none if it is not tracked.
func (d *Datapath) Counters(ifindex int) (Counters, error) {
	counters := Counters{Reasons: make(map[string]uint64)}
	d.counters.mu.Lock()
	device := d.devices[ifindex&deviceMask]
	d.counters.mu.Unlock()
	if device.Ifindex != uint32(ifindex) {
		return counters, nil
	}
	var cpus []expressCounters
	if err := d.objs.Regular.Lookup(uint32(device.Counters), &cpus); err != nil {
		return counters, fmt.Errorf("reading the counters of device %d: %w", ifindex, err)
	}
	for _, cpu := range cpus {
		for reason, n := range cpu.Reasons {
			counters.Packets += n
			if n > 0 {
				counters.Reasons[reasonNames[reason]] += n
			}
		}
	}
	return counters, nil
}

// RegularPackets reads the regular packets of all devices, by ifindex, with one call of
// the kernel.
func (d *Datapath) RegularPackets() (map[int]uint64, error) {
	d.counters.mu.Lock()
	used := maps.Clone(d.counters.used)
	d.counters.mu.Unlock()
	last := uint16(0)
	for number := range used {
		last = max(last, number)
	}
	cpus, n := ebpf.MustPossibleCPU(), int(last)+1
	counters := make([]expressCounters, n*cpus)
	if _, err := d.objs.Regular.BatchLookup(new(ebpf.MapBatchCursor), make([]uint32, n), counters, nil); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, fmt.Errorf("reading the counters of %d devices: %w", n, err)
	}
	all := make(map[int]uint64, len(used))
	for number, ifindex := range used {
		for _, cpu := range counters[int(number)*cpus : int(number+1)*cpus] {
			for _, n := range cpu.Reasons {
				all[ifindex] += n
			}
		}
	}
	return all, nil
}

// Event is a message of the programs to the daemon.
type Event struct {
	// Closed means that a SYN, FIN or RST ended the connection of Slot. If
	// none of Closed, Progress and Spares is set, the connection of Key has become a
	// candidate for composing.
	Closed bool
	// Reset means that it was a RST. Stray means that the RST has a sequence
	// number with which its receiver ignores it.
	Reset, Stray bool
	// Progress means that the sequence numbers of the TCP connection of Slot
	// have advanced so much since the last such event that conntrack must
	// forget the acknowledgements that it remembers.
	Progress bool
	// Spares means that half of what was set aside for a container is used up.
	Spares bool

	Slot uint32
	Key  Key
	// Announced is when a candidate became one, in microseconds of CLOCK_MONOTONIC, the
	// low 32 bits.
	Announced uint32
	// Addrs6 are the addresses of an IPv6 candidate.
	Addrs6 [4]uint64
}

// Waited returns how long ago a candidate became one, at most 71 minutes.
func (e Event) Waited() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // cannot fail
	return time.Duration(uint32(now.Nano()/1000)-e.Announced) * time.Microsecond
}

// Key is one direction of a connection, as the programs store it.
type Key struct {
	Addrs uint64 // source, destination << 32, in network byte order; for IPv6 their digest
	Ports uint32 // source, destination << 16, in network byte order
	Side  uint32 // ifindex of the container's port << SideShift, or 0; and flags
}

// The fields of a key's Side: UDP_SIDE, IPV6_SIDE, SIDE_SHIFT of
// bpf/lib/packet.h.
const (
	SideUDP   = 1 << 0
	SideIPv6  = 1 << 1
	SideFlags = SideUDP | SideIPv6
	SideShift = 2
)

// maxIfindex is the highest ifindex that fits into a key's Side.
const maxIfindex = 1<<(32-SideShift) - 1

// ReadEvents waits for the next event, and returns it with those behind it that are there
// already, at most so many. It returns ringbuf.ErrClosed after Close.
func (d *Datapath) ReadEvents(most int) (events []Event, err error) {
	for record := new(ringbuf.Record); len(events) == 0 || len(events) < most && record.Remaining > 0; {
		if err := d.events.ReadInto(record); err != nil {
			return nil, err
		}
		e, err := parseEvent(record.RawSample)
		if err != nil {
			return nil, err
		}
		events = append(events, e)
	}
	return events, nil
}

func parseEvent(b []byte) (Event, error) {
	if len(b) < int(unsafe.Sizeof(expressEvent{})) {
		return Event{}, fmt.Errorf("event of %d bytes: too short", len(b))
	}
	e := (*expressEvent)(unsafe.Pointer(&b[0]))
	reset := e.Kind == expressEventKindEVENT_RESET || e.Kind == expressEventKindEVENT_STRAY_RESET
	event := Event{
		Closed:   reset || e.Kind == expressEventKindEVENT_CLOSED,
		Reset:    reset,
		Stray:    e.Kind == expressEventKindEVENT_STRAY_RESET,
		Progress: e.Kind == expressEventKindEVENT_PROGRESS,
		Spares:   e.Kind == expressEventKindEVENT_SPARES,
		Slot:     e.Slot,
		Key:      Key{Addrs: e.Key.Addrs, Ports: e.Key.Ports, Side: e.Key.Side},
	}
	if e.Kind == expressEventKindEVENT_CANDIDATE {
		event.Slot, event.Announced = 0, e.Slot
	}
	if len(b) >= int(unsafe.Sizeof(expressEvent6{})) {
		event.Addrs6 = (*expressEvent6)(unsafe.Pointer(&b[0])).Addrs
	}
	return event, nil
}
