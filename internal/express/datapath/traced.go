package datapath

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/bpfload"
)

// conntrackModule has conntrack's types, unless it is built in.
const conntrackModule = "nf_conntrack"

// traced are the programs that follow the kernel outside the packet path. They need
// its BTF; each is nil where the kernel lacks what it needs.
type traced struct {
	drops   link.Link // which packets the kernel drops, and why (Linux 5.18)
	noDrops error     // why it is missing
	ends    link.Link // which connections leave conntrack
	noEnds  error
}

// trace loads the programs that the kernel supports.
func (d *Datapath) trace() {
	spec, o, types, err := d.tracedSpec()
	if err != nil {
		d.traced = traced{noDrops: err, noEnds: err}
		return
	}
	var drops struct {
		Program *ebpf.Program `ebpf:"scon_dropped"`
	}
	d.drops, d.noDrops = d.attachTraced(spec, types, o, &drops, func() (link.Link, error) {
		defer drops.Program.Close()
		return link.AttachTracing(link.TracingOptions{Program: drops.Program})
	})

	module, err := types.Module(conntrackModule)
	if err != nil {
		var ends struct {
			Program *ebpf.Program `ebpf:"scon_ct_delete"`
		}
		d.ends, d.noEnds = d.attachTraced(spec, types, o, &ends, func() (link.Link, error) {
			defer ends.Program.Close()
			return link.AttachTracing(link.TracingOptions{Program: ends.Program})
		})
		return
	}
	var ends struct {
		Program *ebpf.Program `ebpf:"scon_ct_delete_probe"`
	}
	o.ExtraRelocationTargets = []*btf.Spec{module}
	d.ends, d.noEnds = d.attachTraced(spec, types, o, &ends, func() (link.Link, error) {
		defer ends.Program.Close()
		return link.Kprobe("nf_ct_delete", ends.Program, nil)
	})
}

// tracedSpec reads the object of the programs that read the kernel's own structs, and the
// kernel's types.
func (d *Datapath) tracedSpec() (spec *ebpf.CollectionSpec, o ebpf.ProgramOptions, types *btf.Cache, err error) {
	types = btf.NewCache()
	if spec, err = loadTraced(); err == nil {
		err = d.configure(spec)
	}
	if err == nil {
		err = setMachine(spec)
	}
	if err == nil {
		// Only the kernel's own types. Those of its modules need more memory than a small
		// guest has.
		o.KernelTypes, err = types.Kernel()
	}
	if err != nil {
		err = fmt.Errorf("reading the kernel's types: %w", err)
	}
	return spec, o, types, err
}

// setMachine tells the programs the namespace of the calling thread, and the architecture.
func setMachine(spec *ebpf.CollectionSpec) error {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return os.NewSyscallError("stat", err)
	}
	if runtime.GOARCH == "arm64" {
		if err := spec.Variables[tracedVarIsArm64].Set(uint32(1)); err != nil {
			return err
		}
	}
	return spec.Variables[tracedVarNetns].Set(uint32(st.Ino))
}

// attachTraced loads a program into objs and attaches it.
func (d *Datapath) attachTraced(spec *ebpf.CollectionSpec, types *btf.Cache, o ebpf.ProgramOptions, objs any, attach func() (link.Link, error)) (link.Link, error) {
	err := bpfload.LoadAndAssign(spec.Copy(), objs, &ebpf.CollectionOptions{
		Cache:    types,
		Programs: o,
		MapReplacements: map[string]*ebpf.Map{
			tracedMapConentries: d.objs.Conentries,
			tracedMapBuckets:    d.objs.Buckets,
			tracedMapEvents:     d.objs.Events,
			mapSettings:         d.objs.Shared,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("loading a program that follows the kernel: %w", err)
	}
	l, err := attach()
	if err != nil {
		return nil, fmt.Errorf("attaching a program that follows the kernel: %w", err)
	}
	return l, nil
}

// close detaches the programs.
func (t *traced) close() (err error) {
	for _, l := range []link.Link{t.drops, t.ends} {
		if l != nil {
			err = errors.Join(err, l.Close())
		}
	}
	return err
}

// ErrNoDrops means that this kernel does not report why it drops packets.
var ErrNoDrops = errors.New("the kernel reports no drop reasons (Linux 5.18 with BTF is needed)")

// Discards returns nil if Conentries can be discards, otherwise why not.
func (d *Datapath) Discards() error {
	if d.drops == nil {
		return fmt.Errorf("%w: %w", ErrNoDrops, d.noDrops)
	}
	return nil
}

// FollowsEnds returns nil if the programs see which connections leave conntrack and report
// them as closed, otherwise why not: then EndFilter is for the messages that do.
func (d *Datapath) FollowsEnds() error { return d.noEnds }

// EndsLost reports whether the end of a connection could not be reported since the last
// call.
func (d *Datapath) EndsLost() bool {
	lost := &d.Settings().EndsLost
	if atomic.LoadUint32(lost) == 0 {
		return false
	}
	atomic.StoreUint32(lost, 0)
	return true
}
