package hooks

import (
	"fmt"
	"log/slog"

	"github.com/scon-project/scon/internal/express/discover"
)

// steering is what is known of the bridges with ports to hook: whether they steer packets
// to other CPUs (RPS). The kernel does not announce that: it is polled once a second.
type steering map[int]*steeredBridge

// steeredBridge is one bridge.
type steeredBridge struct {
	rps
	kept   string // why ports of it are not hooked, "" if they are
	unread error  // why it could not be read at the last look
	warned bool   // of that
}

// set watches bridges in place of the ones before. It looks at new ones, or at all.
func (s steering) set(want []discover.Bridge, all bool) {
	wanted := make(map[int]bool, len(want))
	for _, b := range want {
		wanted[b.Index] = true
		fresh := s[b.Index] == nil
		if fresh {
			s[b.Index] = &steeredBridge{rps: rps{b.Name, b.Index, b.Index, nil}}
		}
		if fresh || all {
			s[b.Index].look()
		}
	}
	for index, b := range s {
		if !wanted[index] {
			b.close()
			delete(s, index)
		}
	}
}

// poll looks at the bridges again, and reports whether other ones keep their ports
// regular. It warns once of a bridge that cannot be read: one that was removed during a
// scan is not watched any more.
func (s steering) poll(log *slog.Logger) (changed bool) {
	for _, b := range s {
		before := b.kept
		b.look()
		changed = changed || b.kept != before
		if b.unread != nil && !b.warned {
			log.Warn("reading the packet steering of a bridge; its containers stay regular", "dev", b.name, "error", b.unread)
		}
		b.warned = b.unread != nil
	}
	return changed
}

// look reads whether the bridge steers. In doubt it does.
func (b *steeredBridge) look() {
	steers, err := b.steers()
	b.kept, b.unread = "", err
	switch {
	case err != nil:
		b.kept = fmt.Sprintf("whether its bridge %s hands packets to other CPUs (rps_cpus) cannot be read (%v); mount a sysfs of this network namespace at /sys", b.name, err)
	case steers:
		b.kept = "its bridge " + b.name + " hands packets to other CPUs (rps_cpus), where they would be overtaken; steer them at the port instead"
	}
}

// watches reports whether a device is a bridge that is watched.
func (s steering) watches(ifindex int) bool { return s[ifindex] != nil }

// why returns why ports of a bridge are not hooked, "" if they are.
func (s steering) why(bridge int) string {
	if b := s[bridge]; b != nil {
		return b.kept
	}
	return ""
}

func (s steering) close() {
	for _, b := range s {
		b.close()
	}
}

// rps reads whether a device of this namespace steers packets. It opens the device as soon
// as that is possible.
type rps struct {
	name   string
	index  int
	peer   int              // as discover.OpenDevice has it
	device *discover.Device // nil until then
}

func (r *rps) steers() (steers bool, err error) {
	if r.device == nil {
		if r.device, err = discover.OpenDevice(r.name, r.index, r.peer); err != nil {
			return false, err
		}
	}
	return r.device.Steers()
}

func (r *rps) close() {
	if r.device != nil {
		r.device.Close()
	}
}
