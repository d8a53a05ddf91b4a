// Package ipam leases addresses from ranges. It keeps leases in memory: the owner of a
// Space records its leases and reserves them after a restart.
package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// ErrExhausted is wrapped when every address of a set is leased.
var ErrExhausted = errors.New("no address is free")

// Range is a range of a subnet.
type Range struct {
	Subnet     netip.Prefix
	Start, End netip.Addr // the first and the last address to lease
	Gateway    netip.Addr // never leased
}

// Set is the ranges from which a container gets one address.
type Set []Range

// Overlaps reports whether two sets have an address in common.
func (s Set) Overlaps(other Set) bool {
	return slices.ContainsFunc(s, func(r Range) bool {
		return slices.ContainsFunc(other, func(o Range) bool { return r.holds(o.Start) || o.holds(r.Start) })
	})
}

// Lease is a leased address.
type Lease struct {
	Address netip.Prefix `json:"address"` // with the subnet's length
	Gateway netip.Addr   `json:"gateway"`
}

// Space leases addresses. It is safe for concurrent use.
type Space struct {
	sets []Set
	next []netip.Addr // of each set: where the search starts
	*leased
}

// mu is the lock of all spaces: some look into others.
var mu sync.Mutex

// leased is the state common to the spaces of one network.
type leased struct {
	cooldown time.Duration

	taken   map[netip.Addr]bool
	cooling []cooling // oldest first
	cools   map[netip.Addr]bool
	beside  []*leased
}

// cooling is a recently released address.
type cooling struct {
	addr  netip.Addr
	until time.Time
}

// New returns a space with every address free. A released address is leased again
// within the cooldown only if no other is free.
func New(sets []Set, cooldown time.Duration) *Space {
	return newSpace(sets, &leased{cooldown: cooldown, taken: make(map[netip.Addr]bool), cools: make(map[netip.Addr]bool)})
}

// With returns a space of other ranges that shares the leases, present and future: of
// a network whose configuration has changed.
func (s *Space) With(sets []Set) *Space { return newSpace(sets, s.leased) }

// Beside has two spaces lease no address that the other one has leased.
func (s *Space) Beside(other *Space) {
	mu.Lock()
	defer mu.Unlock()
	if s.leased != other.leased && !slices.Contains(s.beside, other.leased) {
		s.beside, other.beside = append(s.beside, other.leased), append(other.beside, s.leased)
	}
}

// isTaken reports whether an address is leased, here or beside.
func (l *leased) isTaken(addr netip.Addr) bool {
	return l.taken[addr] || slices.ContainsFunc(l.beside, func(other *leased) bool { return other.taken[addr] })
}

func newSpace(sets []Set, l *leased) *Space {
	s := &Space{sets: sets, leased: l}
	for _, set := range sets {
		s.next = append(s.next, set[0].Start)
	}
	return s
}

// Allocate leases one address of each set, or none.
func (s *Space) Allocate(now time.Time) (leases []Lease, err error) {
	mu.Lock()
	defer mu.Unlock()
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

// allocate returns a free address of a set, else the address that has cooled longest.
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

// find returns the next free address of a set, cyclically, so that an address is reused as
// late as possible.
func (s *Space) find(set int) (Lease, bool) {
	ranges := s.sets[set]
	at := 0
	for i, r := range ranges {
		if r.holds(s.next[set]) {
			at = i
		}
	}
	addr := s.next[set]
	for round := 0; round <= len(ranges); round++ {
		r := ranges[at]
		for ; r.holds(addr); addr = addr.Next() {
			if !s.isTaken(addr) && !s.cools[addr] && addr != r.Gateway {
				return r.lease(addr), true
			}
		}
		at = (at + 1) % len(ranges)
		addr = ranges[at].Start
	}
	return Lease{}, false
}

// coolest returns the address of a set that has cooled longest and its index, -1 if none
// cools.
func (s *Space) coolest(set int) (int, Lease) {
	for i, c := range s.cooling {
		for _, r := range s.sets[set] {
			if r.holds(c.addr) && !s.isTaken(c.addr) && c.addr != r.Gateway {
				return i, r.lease(c.addr)
			}
		}
	}
	return -1, Lease{}
}

// Reserve marks addresses as leased; one outside the ranges has no effect on this
// space.
func (s *Space) Reserve(leases []Lease) {
	mu.Lock()
	defer mu.Unlock()
	for _, l := range leases {
		s.taken[l.Address.Addr()] = true
	}
}

// Release returns addresses, which then cool down.
func (s *Space) Release(leases []Lease, now time.Time) {
	mu.Lock()
	defer mu.Unlock()
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

// Holds reports whether an address is in the ranges.
func (s *Space) Holds(l Lease) bool {
	return slices.ContainsFunc(s.sets, func(set Set) bool {
		return slices.ContainsFunc(set, func(r Range) bool { return r.holds(l.Address.Addr()) })
	})
}

// Taken returns the number of leased addresses.
func (s *Space) Taken() int {
	mu.Lock()
	defer mu.Unlock()
	return len(s.taken)
}

// Full reports whether Allocate would fail.
func (s *Space) Full() bool {
	mu.Lock()
	defer mu.Unlock()
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
