package datapath

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// Outers are the outer headers that tunnels add to packets, by slot. Few are
// used, so they are not mapped. The zero value has none.
type Outers struct{ m *ebpf.Map }

// Of returns the outer headers of a slot, the zero Outer if none are recorded.
func (o Outers) Of(slot uint32) (outer Outer, err error) {
	if o.m == nil {
		return outer, nil
	}
	if err := o.m.Lookup(slot, &outer); err != nil {
		return Outer{}, fmt.Errorf("reading the outer headers of slot %d: %w", slot, err)
	}
	return outer, nil
}

// Forget clears the outer headers of slots.
func (o Outers) Forget(slots ...uint32) error {
	if o.m == nil {
		return nil
	}
	for _, slot := range slots {
		if err := o.m.Put(slot, Outer{}); err != nil {
			return fmt.Errorf("clearing the outer headers of slot %d: %w", slot, err)
		}
	}
	return nil
}
