package datapath

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/scon-project/scon/internal/host/bpfload"
)

// Spares are the pairs of slots that are set aside for one container, of which a program
// composes Conentries; bpf/early.bpf.c documents them.
type Spares = tracedSpareSlots

// SparesOfPort is how many pairs can be set aside for one container.
const SparesOfPort = len(Spares{}.Slots)

// Bits of Half.Proto.ReportAfter, EARLY and EARLY_FIN of bpf/lib/maps.h.
const (
	Early    = 1 << 31
	EarlyFIN = 1 << 30
)

// early is the program that composes Conentries, and what it takes them of.
type early struct {
	Program *ebpf.Program `ebpf:"scon_early"`
	Spares  *ebpf.Map     `ebpf:"spares"`
	rings   []Spares      // by number of counters
}

// mapSpares is the name of the mapping of early.rings.
const mapSpares = "spares"

// OpenEarly loads what composes Conentries in the kernel, unless it is there. It needs the
// kernel's BTF. Without SetEarly it composes none.
func (d *Datapath) OpenEarly() (err error) {
	if d.early != nil {
		return nil
	}
	spec, o, types, err := d.tracedSpec()
	if err != nil {
		return err
	}
	if module, err := types.Module(conntrackModule); err == nil {
		o.ExtraRelocationTargets = []*btf.Spec{module}
	}
	e := new(early)
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	err = bpfload.LoadAndAssign(spec, e, &ebpf.CollectionOptions{
		Cache:    types,
		Programs: o,
		MapReplacements: map[string]*ebpf.Map{
			tracedMapBuckets:    d.objs.Buckets,
			tracedMapConentries: d.objs.Conentries,
			tracedMapDevices:    d.objs.Devices,
			tracedMapEvents:     d.objs.Events,
			tracedMapOdd:        d.objs.Odd,
			tracedMapOpening:    d.objs.Opening,
			tracedMapRegular:    d.objs.Regular,
			mapSettings:         d.objs.Shared,
		},
	})
	if err != nil {
		return fmt.Errorf("loading the program that composes Conentries: %w", err)
	}
	at, err := d.mmap(e.Spares, mapSpares)
	if err != nil {
		return err
	}
	e.rings = unsafe.Slice((*Spares)(at), e.Spares.MaxEntries())
	if err := d.objs.Composers.Put(uint32(0), e.Program); err != nil {
		return errors.Join(fmt.Errorf("enabling the program that composes Conentries: %w", err), d.munmap(mapSpares))
	}
	d.early = e
	return nil
}

// EarlyWay is how programs may compose connections, shared.early of bpf/lib/maps.h.
type EarlyWay uint32

// Ways: not; so that the third packet of a connection is the first one by which is decided,
// or that the second one is, for which the rules must be the same.
const (
	EarlyOff EarlyWay = iota
	EarlyOn
	EarlyFromSecond
)

// SetEarlyWay says how programs may compose connections.
func (d *Datapath) SetEarlyWay(way EarlyWay) {
	if early := &d.Settings().Early; atomic.LoadUint32(early) != uint32(way) {
		atomic.StoreUint32(early, uint32(way))
	}
}

func (e *early) close() error {
	if e == nil {
		return nil
	}
	return errors.Join(e.Program.Close(), e.Spares.Close())
}

// Ring returns what is set aside for the container at a tracked port, nil if there is nothing
// to set it aside for: OpenEarly was not called, or it is no such port.
func (d *Datapath) Ring(port int) *Spares {
	d.counters.mu.Lock()
	defer d.counters.mu.Unlock()
	device := d.devices[port&deviceMask]
	if d.early == nil || device.Ifindex != uint32(port) || device.Counters == 0 {
		return nil
	}
	return &d.early.rings[device.Counters]
}

// SetEarly says whether programs may compose connections of the container at a tracked port;
// if outside, whether they may by a tracked uplink.
func (d *Datapath) SetEarly(ifindex int, outside, may bool) error {
	flag := uint16(deviceEarly)
	if outside {
		flag = deviceOutside
	}
	_, err := d.setFlags(ifindex, map[uint16]bool{flag: may})
	return err
}
