// Package datapath loads the express programs, attaches them to devices and
// keeps them alive beyond the process. Links and maps are pinned: a daemon
// that dies leaves a working kernel side (inert without its heartbeat), which
// the next daemon takes over.
//
// It is the only user of the types that bpf2go generates.
package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"path/filepath"
	"runtime"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/bpfload"
)

// Half is one direction of a Conentry in the kernel's table; bpf/lib/maps.h
// documents its fields.
type Half = expressHalf

// Outer is the outer headers that a tunnel adds to the packets of a half.
type Outer = expressOuter

// Settings are the values that change at run time; bpf/lib/maps.h documents
// them.
type Settings = expressSettings

// States of a slot of the table.
const (
	SlotEmpty  = uint8(expressSlotStateSLOT_EMPTY)
	SlotOpen   = uint8(expressSlotStateSLOT_OPEN)
	SlotClosed = uint8(expressSlotStateSLOT_CLOSED)
	// SlotDiscard is open and drops packets.
	SlotDiscard = uint8(expressSlotStateSLOT_DISCARD)
)

// Flags of a Half: its packets go to another container; they do so within a
// bridge, without an IP router.
const (
	PathBetween = 1 << 2 // bpf/lib/maps.h's PATH_BETWEEN
	PathBridged = 1 << 3 // and its PATH_BRIDGED
)

// DevTunnel is the flag of a Half whose packets may skip a tunnel's device, DEV_TUNNEL
// of bpf/lib/maps.h.
const DevTunnel = deviceTunnel

// DevByRoute is that of one whose packets must skip it, DEV_BY_ROUTE.
const DevByRoute = deviceByRoute

// TunnelIPIP in Settings.Tunnels means that a device of IPIP may be skipped, TUNNEL_IPIP.
const TunnelIPIP = 1 << 16

// DevSpread is that of one whose packets leave by one of several next hops, DEV_SPREAD.
const DevSpread = deviceSpread

// LayoutVersion is LAYOUT_VERSION of bpf/lib/maps.h. Pinned maps of another
// version are not taken over.
const LayoutVersion = 32

// Bucket is four places of halves; bpf/lib/maps.h documents it.
type Bucket = expressBucket

// SlotBits is how many low bits of a bucket's place are the number of a slot, SLOT_BITS of
// bpf/lib/maps.h. The others are a tag.
const SlotBits = 22

// Memory is what the daemon and the programs share: the kernel's own, not a
// copy.
type Memory struct {
	// Halves and Outers have the slots of the table and their outer headers by page, nil
	// for pages that there are not (yet).
	Halves   [][]Half
	Outers   [][]Outer
	Buckets  []Bucket
	Settings *Settings
	// Candidates counts the packets of connections without an entry, by the
	// low bits of the hash of the container's direction: signature, whether a rule
	// keeps the connection regular, time of the first packet, count, as
	// bpf/lib/maps.h has them.
	Candidates []uint64
}

// heartbeatLimit is how long the programs forward without a heartbeat.
const heartbeatLimit = time.Second

// admitAge is the age at which a connection of few packets is announced.
const admitAge = 900 * time.Millisecond

// AgeShift is the binary logarithm of the unit in which the programs keep the time
// of a candidate's first packet, in jiffies: about 64 ms.
func AgeShift(tick time.Duration) uint32 { return uint32(bits.Len(uint(64*time.Millisecond/tick) - 1)) }

// minFrame is the shortest packet that the kernel runs a program on: an
// Ethernet header.
const minFrame = 14

// ErrUnsupported means that this kernel cannot run SCON's programs.
var ErrUnsupported = errors.New("kernel does not support SCON's BPF programs (Linux 5.15 or newer is needed)")

// TCPLeasePackets is the most packets of one direction in a lease of a TCP connection:
// conntrack has to be told of what it has sent, bpf/lib/tcp.h.
const TCPLeasePackets = 4096

// Options say what to load. All fields but ForceClsact are required.
type Options struct {
	// PinDir is a directory on a bpffs, of this network namespace alone.
	PinDir string
	// Connections is how many Conentries the table can have when it has grown, 1..1048576.
	Connections uint32
	// Admit is how many packets a connection sends regular before it is
	// composed, 2..65535. A slow one is composed with fewer, after a second.
	Admit uint32
	// LeasePackets bounds a lease by packets of one direction. For TCP the
	// programs let at most 4096 pass.
	LeasePackets uint32
	// ForceClsact attaches by clsact even where the kernel has tcx.
	ForceClsact bool
}

// Datapath is the loaded kernel side.
type Datapath struct {
	opts     Options
	size     size
	inner    map[string]*ebpf.MapSpec // of arrays of maps, by their names
	objs     objects
	memory   Memory
	devices  map[int]expressDevice // the entries of the programs' table, by place
	forms    map[int]form          // of hooked uplinks, by ifindex
	mapped   map[string][]byte     // the mappings of memory, by their maps
	counters counterSlots
	events   *ringbuf.Reader
	hooker   hooker
	uplinks  uplinks
	grace    *Grace
	traced
	early   *early // nil unless it is open
	tick    time.Duration
	adopted bool
	frame   [minFrame]byte // of the heartbeat
}

// Load takes over the pinned kernel side in o.PinDir if its layout and size
// fit. Otherwise it starts with an empty one, one second later, when the old
// one has become inert. Hooks that are already attached run their old programs
// until Attach.
func Load(o Options) (_ *Datapath, err error) {
	if o.Connections < 1 || o.Connections > 1<<SlotBits/4 {
		return nil, fmt.Errorf("loading the datapath: a table for %d connections", o.Connections)
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("raising the locked-memory limit: %w", err)
	}
	d := &Datapath{opts: o, size: sizeFor(o.Connections), mapped: make(map[string][]byte), tick: jiffy()}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()

	if err := d.loadObjects(); err != nil {
		return nil, err
	}
	if err := d.mapMemory(); err != nil {
		return nil, err
	}
	d.trace()
	if err := d.adoptDevices(); err != nil {
		return nil, err
	}
	if !d.adopted {
		if err := d.initSettings(); err != nil {
			return nil, err
		}
	}
	if d.grace, err = NewGrace(); err != nil {
		return nil, err
	}
	if d.events, err = ringbuf.NewReader(d.objs.Events); err != nil {
		return nil, fmt.Errorf("reading the event buffer: %w", err)
	}
	if err := d.uplinks.own(d.objs.attached()...); err != nil {
		return nil, err
	}
	if d.hooker, err = d.newHooker(); err != nil {
		return nil, err
	}
	return d, nil
}

// roomForPrograms is more than the programs take, and the verifier while it checks them.
const roomForPrograms = 16 << 20

// objects are the maps, and the programs that every daemon needs. Those of uplinks of
// another form than usual come with the first one (uplinks.go).
//
// The programs are first: they are loaded in order, and where no file can be opened, the
// library takes a map for a missing feature of the kernel, but no program.
type objects struct {
	Beat          *ebpf.Program `ebpf:"scon_beat"`
	ConntrackEnd  *ebpf.Program `ebpf:"scon_conntrack_end"`
	FromContainer *ebpf.Program `ebpf:"scon_from_container"`
	ToContainer   *ebpf.Program `ebpf:"scon_to_container"`
	FromNetkit    *ebpf.Program `ebpf:"scon_from_netkit"`
	FromWire      *ebpf.Program `ebpf:"scon_from_wire"`
	ToWire        *ebpf.Program `ebpf:"scon_to_wire"`
	expressMaps
	Shared *ebpf.Map `ebpf:".data.shared"` // holds the settings
}

// attached are the programs that hooks have.
func (o *objects) attached() []*ebpf.Program {
	return []*ebpf.Program{o.FromContainer, o.ToContainer, o.FromNetkit, o.FromWire, o.ToWire}
}

// pinned are the maps that outlast the daemon.
func (o *objects) pinned() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{
		expressMapBuckets:    o.Buckets,
		expressMapCandidates: o.Candidates,
		expressMapConentries: o.Conentries,
		expressMapDevices:    o.Devices,
		expressMapEvents:     o.Events,
		expressMapOuters:     o.Outers,
		expressMapRegular:    o.Regular,
		expressMapSent:       o.Sent,
		mapSettings:          o.Shared,
	}
}

func (o *objects) Close() error {
	errs := []error{o.expressMaps.Close(), o.Shared.Close(), o.Beat.Close(), o.ConntrackEnd.Close()}
	for _, p := range o.attached() {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// spec reads the BPF object, and sets it for this machine and the options.
func (d *Datapath) spec() (*ebpf.CollectionSpec, error) {
	spec, err := loadExpress()
	if err != nil {
		return nil, fmt.Errorf("reading the BPF object: %w", err)
	}
	return spec, d.configure(spec)
}

// loadObjects loads the programs over the pinned maps if they fit, otherwise
// over new maps that replace the pinned ones.
func (d *Datapath) loadObjects() error {
	spec, err := d.spec()
	if err != nil {
		return err
	}
	d.inner = map[string]*ebpf.MapSpec{
		expressMapConentries: spec.Maps[expressMapConentries].InnerMap,
		expressMapOuters:     spec.Maps[expressMapOuters].InnerMap,
	}

	pinned, err := openPinnedMaps(d.opts.PinDir, spec)
	if err != nil {
		return err
	}
	defer closeMaps(pinned)
	d.adopted = len(pinned) > 0
	if !d.adopted {
		fixed := uint64(d.size.buckets)*uint64(unsafe.Sizeof(Bucket{})) + uint64(d.size.candidates)*uint64(unsafe.Sizeof(uint64(0)))
		if err := checkRoom(fixed + PageSlots*uint64(unsafe.Sizeof(Half{})) + roomForPrograms); err != nil {
			return fmt.Errorf("loading the BPF programs: %w", err)
		}
	}

	if err := load(spec, &d.objs, pinned); err != nil {
		return err
	}
	if d.adopted {
		return nil
	}
	if err := outlast(d.opts.PinDir); err != nil {
		return err
	}
	return pinMaps(d.opts.PinDir, d.objs.pinned())
}

// load loads what has a field in to, over maps that are there.
func load(spec *ebpf.CollectionSpec, to any, there map[string]*ebpf.Map) error {
	err := bpfload.LoadAndAssign(spec, to, &ebpf.CollectionOptions{MapReplacements: there})
	if err == nil {
		return nil
	}
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("loading the BPF programs: %w (root or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON are needed)", err)
	}
	for _, short := range []error{unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.ENOSPC} {
		if errors.Is(err, short) {
			return fmt.Errorf("loading the BPF programs: %w", err)
		}
	}
	return fmt.Errorf("%w: %w", ErrUnsupported, err)
}

// configure sets the sizes of maps and the constants of the programs.
func (d *Datapath) configure(spec *ebpf.CollectionSpec) error {
	spec.Maps[expressMapConentries].MaxEntries = d.size.pages
	spec.Maps[expressMapOuters].MaxEntries = d.size.pages
	spec.Maps[expressMapBuckets].MaxEntries = d.size.buckets
	// Of ten thousand connections that begin in 65,536 places, a seventh would share theirs.
	spec.Maps[expressMapCandidates].MaxEntries = d.size.candidates
	spec.Maps[mapSettings].Flags |= unix.BPF_F_MMAPABLE
	hasIPsec := uint32(1)
	if features.HaveProgramHelper(ebpf.SchedCLS, asm.FnSkbGetXfrmState) != nil {
		hasIPsec = 0 // a kernel without IPsec
	}
	ordered := uint32(0)
	if runtime.GOARCH == "amd64" {
		ordered = 1
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("counting the CPUs: %w", err)
	}
	for name, value := range map[string]uint32{
		expressVarHasIpsec:       hasIPsec,
		expressVarOrderedLoads:   ordered,
		expressVarIdBits:         uint32(16 - min(bits.Len(uint(cpus-1)), 16)),
		expressVarAdmit:          d.opts.Admit,
		expressVarAdmitAge:       uint32(admitAge / (d.tick << AgeShift(d.tick))),
		expressVarAgeShift:       AgeShift(d.tick),
		expressVarBucketMask:     d.size.buckets - 1,
		expressVarCandidateMask:  d.size.candidates - 1,
		expressVarLeasePackets:   d.opts.LeasePackets,
		expressVarHeartbeatTicks: uint32(heartbeatLimit / d.tick),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("setting %s: %w", name, err)
		}
	}
	return nil
}

// mapMemory makes table and settings visible to this process.
func (d *Datapath) mapMemory() error {
	buckets, err := d.mmap(d.objs.Buckets, expressMapBuckets)
	if err != nil {
		return err
	}
	settings, err := d.mmap(d.objs.Shared, pinSettings)
	if err != nil {
		return err
	}
	candidates, err := d.mmap(d.objs.Candidates, expressMapCandidates)
	if err != nil {
		return err
	}
	d.memory = Memory{
		Buckets:    unsafe.Slice((*Bucket)(buckets), d.size.buckets),
		Settings:   (*Settings)(settings),
		Candidates: unsafe.Slice((*uint64)(candidates), d.size.candidates),
	}
	if d.memory.Halves, err = adoptPages(d, d.halves()); err != nil {
		return err
	}
	if d.memory.Outers, err = adoptPages(d, d.outers()); err != nil {
		return err
	}
	if d.memory.Halves[0] == nil {
		d.memory.Halves[0], err = d.AddPage(0)
	}
	return err
}

func (d *Datapath) initSettings() error {
	seed := make([]byte, 8)
	if _, err := unix.Getrandom(seed, 0); err != nil {
		return fmt.Errorf("seeding the hash: %w", err)
	}
	s := d.memory.Settings
	s.Seed = binary.NativeEndian.Uint64(seed)
	s.Generation = 1
	s.Layout = LayoutVersion
	return nil
}

// Adopted reports whether Load took over a pinned table.
func (d *Datapath) Adopted() bool { return d.adopted }

// Memory is what the programs work on. It is valid until Close.
func (d *Datapath) Memory() Memory { return d.memory }

// Settings are those of Memory.
func (d *Datapath) Settings() *Settings { return d.memory.Settings }

// Tick is the length of a jiffy, the unit of leases.
func (d *Datapath) Tick() time.Duration { return d.tick }

// EndFilter is the file descriptor of a socket filter for the messages of
// connections that leave conntrack: it ends their Conentries, reports that as the
// programs do, and passes messages that it cannot read. It is valid until Close.
func (d *Datapath) EndFilter() int { return d.objs.ConntrackEnd.FD() }

// Mode is "tcx" or "clsact".
func (d *Datapath) Mode() string { return d.hooker.mode() }

// Beat writes the heartbeat. Without it the programs become inert within a
// second. Afterwards Settings().Heartbeat is the current jiffy.
//
// Program.Run locks the goroutine to its thread, for which Go wakes two others, and a system
// call that Go knows of wakes its monitor: a third of an idle daemon's time. The program
// runs for less than a microsecond.
func (d *Datapath) Beat() error {
	test := struct { // of union bpf_attr
		program, _, size, _ uint32
		frame, _            uint64
		rest                [12]uint32
	}{program: uint32(d.objs.Beat.FD()), size: minFrame, frame: uint64(uintptr(unsafe.Pointer(&d.frame)))}
	_, _, errno := unix.RawSyscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&test)), unsafe.Sizeof(test))
	if errno != 0 {
		return fmt.Errorf("running the heartbeat program: %w", errno)
	}
	return nil
}

// Grace counts grace periods of the programs.
func (d *Datapath) Grace() *Grace { return d.grace }

// Close releases the kernel side, which its pins keep alive. Closing twice is
// harmless.
func (d *Datapath) Close() error {
	var errs []error
	errs = append(errs, d.traced.close(), d.early.close(), d.grace.Close())
	if d.events != nil {
		errs = append(errs, d.events.Close())
	}
	if d.hooker != nil {
		errs = append(errs, d.hooker.close())
	}
	for name := range d.mapped {
		errs = append(errs, d.munmap(name))
	}
	d.memory = Memory{}
	errs = append(errs, d.uplinks.close(), d.objs.Close())
	return errors.Join(errs...)
}

// jiffy is the length of the kernel's tick: the resolution of its coarse
// clocks.
func jiffy() time.Duration {
	var res unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &res); err != nil || res.Nano() == 0 {
		return 10 * time.Millisecond // the longest possible: leases end early
	}
	return time.Duration(res.Nano())
}

// linkPath is where the link of a hook is pinned.
func linkPath(pinDir string, h Hook, ifindex int) string {
	return filepath.Join(pinDir, fmt.Sprintf("%s_%d", h, ifindex))
}
