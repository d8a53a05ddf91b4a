package hooks

import (
	"log/slog"
	"maps"

	"github.com/scon-project/scon/internal/express/discover"
)

// steering is which bridges with ports to hook steer packets to other CPUs (RPS).
// The kernel does not announce that: it is polled once a second.
type steering struct {
	bridges map[int]*discover.Device
	steers  map[int]bool
}

func newSteering() steering {
	return steering{bridges: make(map[int]*discover.Device), steers: make(map[int]bool)}
}

// set watches bridges in place of the ones before.
func (s *steering) set(want []discover.Bridge, log *slog.Logger) {
	wanted := make(map[int]bool, len(want))
	for _, b := range want {
		wanted[b.Index] = true
		if s.bridges[b.Index] != nil {
			continue
		}
		device, err := discover.OpenDevice(b.Name, b.Index)
		if err != nil {
			log.Error("opening a bridge to read its packet steering", "dev", b.Name, "error", err)
			continue
		}
		s.bridges[b.Index] = device
	}
	for index, device := range s.bridges {
		if !wanted[index] {
			device.Close()
			delete(s.bridges, index)
		}
	}
	s.poll()
}

// poll finds the bridges that steer, and reports whether they are other ones.
func (s *steering) poll() (changed bool) {
	before := maps.Clone(s.steers)
	clear(s.steers)
	for index, device := range s.bridges {
		if steers, err := device.Steers(); err == nil && steers {
			s.steers[index] = true
		}
	}
	return !maps.Equal(before, s.steers)
}

// watches reports whether a device is a bridge that is watched.
func (s *steering) watches(ifindex int) bool { return s.bridges[ifindex] != nil }

// why returns why a port is not hooked, "" if it is.
func (s *steering) why(p discover.Port) string {
	if !s.steers[p.Bridge.Index] {
		return ""
	}
	return "its bridge " + p.Bridge.Name + " hands packets to other CPUs (rps_cpus), where they would be overtaken; steer them at the port instead"
}

func (s *steering) close() {
	for _, b := range s.bridges {
		b.Close()
	}
}
