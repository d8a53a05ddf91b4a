// Package ipam leases addresses out of ranges. It keeps leases in memory: who
// owns a Space writes down what it has taken, and reserves it after a restart.
package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// ErrExhausted is wrapped when every address of a set is taken.
var ErrExhausted = errors.New("no address is free")

// Range is a part of a subnet.
type Range struct {
	Subnet     netip.Prefix
	Start, End netip.Addr // the first and the last address to lease
	Gateway    netip.Addr // never leased
}

// Set is ranges of which a container gets one address.
type Set []Range

// Overlaps tells whether an address is in both sets.
func (s Set) Overlaps(other Set) bool {
	return slices.ContainsFunc(s, func(r Range) bool {
		return slices.ContainsFunc(other, func(o Range) bool { return r.holds(o.Start) || o.holds(r.Start) })
	})
}

// Lease is an address that is taken.
type Lease struct {
	Address netip.Prefix `json:"address"` // with the subnet's length
	Gateway netip.Addr   `json:"gateway"`
}

// Space is what addresses are leased from. It is safe for concurrent use.
type Space struct {
	sets []Set
	next []netip.Addr // of each set: where to look first
	*leased
}

// leased is what spaces of one network have in common, and the lock of all of
// them.
type leased struct {
	cooldown time.Duration

	mu      sync.Mutex
	taken   map[netip.Addr]bool
	cooling []cooling // the oldest first
	cools   map[netip.Addr]bool
}

// cooling is an address that was released lately.
type cooling struct {
	addr  netip.Addr
	until time.Time
}

// New makes a space with every address free. One that is released is not
// leased again within the cooldown unless no other is left.
func New(sets []Set, cooldown time.Duration) *Space {
	return newSpace(sets, &leased{cooldown: cooldown, taken: make(map[netip.Addr]bool), cools: make(map[netip.Addr]bool)})
}

// With is a space of other ranges in which all is taken that is taken in this
// one, now and later: of a network whose configuration has changed.
func (s *Space) With(sets []Set) *Space { return newSpace(sets, s.leased) }

func newSpace(sets []Set, l *leased) *Space {
	s := &Space{sets: sets, leased: l}
	for _, set := range sets {
		s.next = append(s.next, set[0].Start)
	}
	return s
}

// Allocate leases one address of each set, or none.
func (s *Space) Allocate(now time.Time) (leases []Lease, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.cooling) > 0 && !s.cooling[0].until.After(now) {
		s.endCooling(0)
	}
	defer func() {
		if err != nil {
			for _, l := range leases {
				delete(s.taken, l.Address.Addr())
			}
		}
	}()
	for i := range s.sets {
		l, ok := s.allocate(i)
		if !ok {
			return leases, fmt.Errorf("lease an address of %v: %w, %d are taken", s.sets[i], ErrExhausted, len(s.taken))
		}
		s.taken[l.Address.Addr()] = true
		leases = append(leases, l)
	}
	return leases, nil
}

// allocate takes a free address of a set, or else the one that has been cooling
// longest.
func (s *Space) allocate(set int) (Lease, bool) {
	if l, ok := s.find(set); ok {
		s.next[set] = l.Address.Addr().Next()
		return l, true
	}
	if i, l := s.coolest(set); i >= 0 {
		s.endCooling(i)
		return l, true
	}
	return Lease{}, false
}

// find looks for a free address of a set: the next one in turn, so that one is
// used again as late as possible.
func (s *Space) find(set int) (Lease, bool) {
	ranges := s.sets[set]
	at := 0
	for i, r := range ranges {
		if r.holds(s.next[set]) {
			at = i
		}
	}
	addr := s.next[set]
	for turn := 0; turn <= len(ranges); turn++ {
		r := ranges[at]
		for ; r.holds(addr); addr = addr.Next() {
			if !s.taken[addr] && !s.cools[addr] && addr != r.Gateway {
				return r.lease(addr), true
			}
		}
		at = (at + 1) % len(ranges)
		addr = ranges[at].Start
	}
	return Lease{}, false
}

// coolest is the address of a set that has been cooling longest, and where it
// is; -1 if none is.
func (s *Space) coolest(set int) (int, Lease) {
	for i, c := range s.cooling {
		for _, r := range s.sets[set] {
			if r.holds(c.addr) && !s.taken[c.addr] && c.addr != r.Gateway {
				return i, r.lease(c.addr)
			}
		}
	}
	return -1, Lease{}
}

// Reserve takes addresses that are in use already; one outside of the ranges
// is none of this space's.
func (s *Space) Reserve(leases []Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range leases {
		s.taken[l.Address.Addr()] = true
	}
}

// Release gives addresses back. They cool down.
func (s *Space) Release(leases []Lease, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range leases {
		addr := l.Address.Addr()
		if !s.taken[addr] {
			continue
		}
		delete(s.taken, addr)
		if s.cooldown > 0 {
			s.cools[addr] = true
			s.cooling = append(s.cooling, cooling{addr, now.Add(s.cooldown)})
		}
	}
}

// Holds tells whether an address is one of the ranges'.
func (s *Space) Holds(l Lease) bool {
	return slices.ContainsFunc(s.sets, func(set Set) bool {
		return slices.ContainsFunc(set, func(r Range) bool { return r.holds(l.Address.Addr()) })
	})
}

// Taken is how many addresses are leased.
func (s *Space) Taken() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.taken)
}

// Full tells whether an Allocate would find nothing.
func (s *Space) Full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for set := range s.sets {
		if _, ok := s.find(set); ok {
			continue
		}
		if i, _ := s.coolest(set); i < 0 {
			return true
		}
	}
	return false
}

func (s *Space) endCooling(i int) {
	delete(s.cools, s.cooling[i].addr)
	s.cooling = append(s.cooling[:i], s.cooling[i+1:]...)
}

func (r Range) holds(addr netip.Addr) bool {
	return addr.IsValid() && addr.Compare(r.Start) >= 0 && addr.Compare(r.End) <= 0
}

func (r Range) lease(addr netip.Addr) Lease {
	return Lease{Address: netip.PrefixFrom(addr, r.Subnet.Bits()), Gateway: r.Gateway}
}

func (r Range) String() string { return fmt.Sprintf("%v-%v", r.Start, r.End) }
