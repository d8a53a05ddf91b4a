package datapath

import (
	"errors"
	"os"
	"time"

	"github.com/cilium/ebpf"
)

// Program is what Attach would attach at a hook, for running it on one packet.
func (d *Datapath) Program(h Hook) *ebpf.Program {
	p, _ := d.program(h, 0) // no device: usual
	return p
}

// ProgramAt is the one that Attach would attach at a tracked device.
func (d *Datapath) ProgramAt(h Hook, ifindex int) (*ebpf.Program, error) {
	return d.program(h, ifindex)
}

// Refuse has the programs of bridges' ports refused.
func (d *Datapath) Refuse(err error) { d.uplinks.err[bridged] = err }

// NextEvent returns the next event that is there already, and whether there
// was one.
func (d *Datapath) NextEvent() (Event, bool, error) {
	d.events.SetDeadline(time.Now().Add(-time.Second))
	events, err := d.ReadEvents(1)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return Event{}, false, nil
	}
	if err != nil {
		return Event{}, false, err
	}
	return events[0], true, nil
}

// Reasons are the names of all reasons.
func Reasons() []string { return reasonNames[1:] }
