package profile

import (
	"fmt"

	"github.com/scon-project/scon/internal/host/netdev"
	"github.com/scon-project/scon/internal/host/netns"
)

// survey finds the devices of a site and the functions at its hooks. A device
// whose place is "" has the site's place.
func (s *site) survey(placeOf func(dev string) place) error {
	return netns.Do(s.netns, func() (err error) {
		if s.spans, err = readSpans(); err != nil {
			return err
		}
		links, err := netdev.List()
		if err != nil {
			return fmt.Errorf("list the devices: %w", err)
		}
		s.devices = make(map[uint32]place)
		for _, l := range links {
			if p := placeOf(l.Attrs().Name); p != "" {
				s.devices[uint32(l.Attrs().Index)] = p
			}
		}
		return nil
	})
}

// stations returns the waypoints around the functions of a hook; the first one has
// the role.
func (s *site) stations(h hook, first role) (stations []station) {
	for i, priority := range priorities(s.spans[h]) {
		at := station{netns: s.netns, hook: h, priority: priority}
		if i == 0 {
			at.role = first
		}
		stations = append(stations, at)
	}
	return stations
}
