package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Hook is a place where packets pass SCON.
type Hook int

// The hooks in packet order.
const (
	FromContainer Hook = iota // ingress of a container's bridge port
	ToWire                    // egress of an uplink
	FromWire                  // ingress of an uplink
	ToContainer               // egress of a container's bridge port
	FromNetkit                // a netkit container's transmit call, ahead of FromContainer
)

// Hooks of a container's bridge port and of an uplink.
var (
	PortHooks   = []Hook{FromContainer, ToContainer}
	UplinkHooks = []Hook{FromWire, ToWire}
	allHooks    = []Hook{FromContainer, ToWire, FromWire, ToContainer, FromNetkit}
)

func (h Hook) String() string {
	return [...]string{"from_container", "to_wire", "from_wire", "to_container", "from_netkit"}[h]
}

// egress reports the direction. At an egress SCON runs before the programs of
// others, to see the decision of the regular path; at an ingress it runs after
// them, so that express packets skip none.
func (h Hook) egress() bool { return h == ToWire || h == ToContainer }

// Attached is one hook on one device.
type Attached struct {
	Hook    Hook
	Ifindex int
}

// hooker attaches programs to devices, by tcx or by clsact.
type hooker interface {
	mode() string
	// attach attaches the program to the device, or replaces SCON's own that
	// is attached already.
	attach(h Hook, ifindex int) error
	// detach removes it; it is no error if the device or the hook is gone.
	detach(h Hook, ifindex int) error
	// attached lists the hooks in place, whoever attached them.
	attached() ([]Attached, error)
	close() error
}

// chooser returns the program of a hook at a device.
type chooser func(h Hook, ifindex int) (*ebpf.Program, error)

func (d *Datapath) newHooker() (hooker, error) {
	o := d.opts
	clsact := &clsactHooker{program: d.program, pinDir: o.PinDir}
	if o.ForceClsact {
		return clsact, nil
	}
	if have, err := haveTCX(d.objs.ToWire); err != nil || !have {
		return clsact, err
	}
	// After a kernel upgrade tc filters may be left.
	if err := detachAll(clsact); err != nil {
		return nil, err
	}
	return &tcxHooker{program: d.program, pinDir: o.PinDir}, nil
}

// haveTCX attaches a program that touches nothing to the loopback device,
// which every namespace has.
func haveTCX(toWire *ebpf.Program) (bool, error) {
	const loopback = 1
	l, err := link.AttachTCX(link.TCXOptions{
		Interface: loopback,
		Program:   toWire,
		Attach:    ebpf.AttachTCXEgress,
	})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("trying tcx on the loopback device: %w", err)
	}
	return true, l.Close()
}

// program returns the one of a hook for a tracked device.
func (d *Datapath) program(h Hook, ifindex int) (*ebpf.Program, error) {
	switch h {
	case FromContainer:
		return d.objs.FromContainer, nil
	case ToContainer:
		return d.objs.ToContainer, nil
	case FromNetkit:
		return d.objs.FromNetkit, nil
	}
	d.counters.mu.Lock()
	f := d.forms[ifindex]
	d.counters.mu.Unlock()
	pair, err := d.uplinkPrograms(f)
	if h == FromWire {
		return pair.FromWire, err
	}
	return pair.ToWire, err
}

// Attach hooks a tracked device. Hooking it again replaces the program by the
// current one.
func (d *Datapath) Attach(h Hook, ifindex int) error {
	if err := d.hooker.attach(h, ifindex); err != nil {
		return fmt.Errorf("attaching %s to device %d: %w", h, ifindex, err)
	}
	return nil
}

// Detach unhooks a device, which may be gone already.
func (d *Datapath) Detach(h Hook, ifindex int) error {
	if err := d.hooker.detach(h, ifindex); err != nil {
		return fmt.Errorf("detaching %s from device %d: %w", h, ifindex, err)
	}
	return nil
}

// Attached lists all hooks in place, including those of an earlier daemon.
func (d *Datapath) Attached() ([]Attached, error) { return d.hooker.attached() }

// passing is more than a packet takes from one program to the next.
const passing = 50 * time.Millisecond

// Remove detaches everything and removes every pin below pinDir. It loads
// nothing, so it works after a crash. The programs go with their pins.
func Remove(pinDir string) error {
	clsact, tcx := &clsactHooker{pinDir: pinDir}, &tcxHooker{pinDir: pinDir}
	err := errors.Join(detachAll(clsact), detachAll(tcx))
	if rm := os.RemoveAll(pinDir); rm != nil {
		err = errors.Join(err, fmt.Errorf("removing the pins: %w", rm))
	}
	return err
}

// detachAll detaches every hook in place. to_container, which makes tokens, goes first,
// and from_container, which drops them, when those that are underway have reached it: a
// token that no program meets is a packet to the bridge, and a port that sends packets
// back (hairpin) has to_container make another of it.
func detachAll(h hooker) error {
	all, err := h.attached()
	if err != nil || len(all) == 0 {
		return err
	}
	var errs []error
	for _, egress := range []bool{true, false} {
		for _, a := range all {
			if a.Hook.egress() == egress {
				errs = append(errs, h.detach(a.Hook, a.Ifindex))
			}
		}
		if egress {
			time.Sleep(passing)
		}
	}
	return errors.Join(errs...)
}

// parsePin is the reverse of linkPath.
func parsePin(path string) (Attached, bool) {
	name := filepath.Base(path)
	for _, h := range allHooks {
		if rest, ok := strings.CutPrefix(name, h.String()+"_"); ok {
			ifindex, err := strconv.Atoi(rest)
			return Attached{Hook: h, Ifindex: ifindex}, err == nil
		}
	}
	return Attached{}, false
}

// OnPort reports whether the hook is at a container's port, not at an uplink.
func (h Hook) OnPort() bool { return h == FromContainer || h == ToContainer || h == FromNetkit }
