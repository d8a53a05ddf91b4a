package datapath

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// Outers are what tunnels put around packets, by slot. They are few that are
// used, so that they are not mapped. The zero value has none.
type Outers struct{ m *ebpf.Map }

// Of returns a slot's; the zero Outer has no generation.
func (o Outers) Of(slot uint32) (outer Outer, err error) {
	if o.m == nil {
		return outer, nil
	}
	if err := o.m.Lookup(slot, &outer); err != nil {
		return Outer{}, fmt.Errorf("reading what is around packets of slot %d: %w", slot, err)
	}
	return outer, nil
}

// Forget makes that of slots unknown.
func (o Outers) Forget(slots ...uint32) error {
	if o.m == nil {
		return nil
	}
	for _, slot := range slots {
		if err := o.m.Put(slot, Outer{}); err != nil {
			return fmt.Errorf("forgetting what is around packets of slot %d: %w", slot, err)
		}
	}
	return nil
}
