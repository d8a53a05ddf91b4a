package datapath

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"github.com/scon-project/scon/internal/host/bpfload"
)

// discardLease is how long a discard is used after Netfilter was seen to drop
// a packet. It is short, since a change that lets its packets pass may not be
// announced.
const discardLease = 100 * time.Millisecond

// watchDrops loads the program that sees which packets the kernel drops, and
// why. It needs the kernel's BTF and drop reasons (Linux 5.18).
func (d *Datapath) watchDrops() (err error) {
	spec, err := loadDropped()
	if err != nil {
		return fmt.Errorf("reading the BPF object: %w", err)
	}
	if err := d.configure(spec); err != nil {
		return err
	}
	var objs struct {
		Dropped *ebpf.Program `ebpf:"scon_dropped"`
	}
	// Read only the kernel's own types. Those of its modules need more memory
	// than a small guest has.
	types := btf.NewCache()
	own, err := types.Kernel()
	if err != nil {
		return fmt.Errorf("reading the kernel's types: %w", err)
	}
	err = bpfload.LoadAndAssign(spec, &objs, &ebpf.CollectionOptions{
		Cache:    types,
		Programs: ebpf.ProgramOptions{KernelTypes: own},
		MapReplacements: map[string]*ebpf.Map{
			droppedMapConentries: d.objs.Conentries,
			mapSettings:          d.shared,
		},
	})
	if err != nil {
		return fmt.Errorf("loading the program that follows dropped packets: %w", err)
	}
	defer objs.Dropped.Close()
	if d.drops, err = link.AttachTracing(link.TracingOptions{Program: objs.Dropped}); err != nil {
		return fmt.Errorf("attaching to tracepoint kfree_skb: %w", err)
	}
	return nil
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
