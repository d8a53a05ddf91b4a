package ipam

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func space(t *testing.T, cooldown time.Duration, confs ...RangeConf) *Space {
	t.Helper()
	var set Set
	for _, c := range confs {
		r, err := c.Range()
		if err != nil {
			t.Fatal(err)
		}
		set = append(set, r)
	}
	return New([]Set{set}, cooldown)
}

func addresses(t *testing.T, s *Space, now time.Time, n int) (got []string) {
	t.Helper()
	for range n {
		l, err := s.Allocate(now)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, l[0].Address.String())
	}
	return got
}

func TestAllocateCyclically(t *testing.T) {
	now := time.Now()
	s := space(t, 0, RangeConf{Subnet: "10.0.0.0/29"}, RangeConf{Subnet: "10.0.1.0/24", RangeStart: "10.0.1.9", RangeEnd: "10.0.1.10"})
	got := strings.Join(addresses(t, s, now, 7), " ")
	if want := "10.0.0.2/29 10.0.0.3/29 10.0.0.4/29 10.0.0.5/29 10.0.0.6/29 10.0.1.9/24 10.0.1.10/24"; got != want {
		t.Errorf("leased %s, want %s", got, want)
	}
	if _, err := s.Allocate(now); !errors.Is(err, ErrExhausted) || !s.Full() {
		t.Errorf("after the last address: %v, full: %v", err, s.Full())
	}
	s.Release([]Lease{{Address: netip.MustParsePrefix("10.0.0.4/29")}}, now)
	if s.Full() {
		t.Error("full with a free address")
	}
	if got := addresses(t, s, now, 1)[0]; got != "10.0.0.4/29" {
		t.Errorf("leased %s, want the one that was released", got)
	}
}

// Two spaces side by side lease no address twice, whichever is released, and stay apart otherwise.
func TestBeside(t *testing.T) {
	now := time.Now()
	a, b := space(t, 0, RangeConf{Subnet: "10.0.0.0/29"}), space(t, 0, RangeConf{Subnet: "10.0.0.0/29"})
	both := addresses(t, a, now, 1)[0] + " " + addresses(t, b, now, 1)[0]
	if both != "10.0.0.2/29 10.0.0.2/29" {
		t.Errorf("alone they lease %s", both)
	}
	a.Beside(b)
	got := strings.Join(append(addresses(t, a, now, 2), addresses(t, b, now, 2)...), " ")
	if want := "10.0.0.3/29 10.0.0.4/29 10.0.0.5/29 10.0.0.6/29"; got != want {
		t.Errorf("leased %s, want %s", got, want)
	}
	if !a.Full() || !b.Full() {
		t.Error("an address is free")
	}
	a.Release([]Lease{{Address: netip.MustParsePrefix("10.0.0.2/29")}, {Address: netip.MustParsePrefix("10.0.0.3/29")}}, now)
	if got := addresses(t, b, now, 1)[0]; got != "10.0.0.3/29" {
		t.Errorf("leased %s, want the one that nobody has", got)
	}
}

func TestCooldown(t *testing.T) {
	now := time.Now()
	s := space(t, time.Minute, RangeConf{Subnet: "10.0.0.0/29"}) // five addresses
	addresses(t, s, now, 4)
	s.Release([]Lease{{Address: netip.MustParsePrefix("10.0.0.2/29")}}, now)
	s.Release([]Lease{{Address: netip.MustParsePrefix("10.0.0.3/29")}}, now)
	// First the address that was never leased, then the one that cooled longest.
	got := strings.Join(addresses(t, s, now, 3), " ")
	if want := "10.0.0.6/29 10.0.0.2/29 10.0.0.3/29"; got != want {
		t.Errorf("leased %s, want %s", got, want)
	}
	s.Release([]Lease{{Address: netip.MustParsePrefix("10.0.0.5/29")}}, now)
	if got := addresses(t, s, now.Add(2*time.Minute), 1)[0]; got != "10.0.0.5/29" {
		t.Errorf("leased %s after the cooldown", got)
	}
	if len(s.cooling) != 0 || len(s.cools) != 0 {
		t.Errorf("still cooling: %v %v", s.cooling, s.cools)
	}
}

// Full leases nothing: cooling addresses keep cooling.
func TestFullLeasesNothing(t *testing.T) {
	now := time.Now()
	s := space(t, time.Minute, RangeConf{Subnet: "10.0.0.0/29", RangeEnd: "10.0.0.4"})
	addresses(t, s, now, 3)
	s.Release([]Lease{{Address: netip.MustParsePrefix("10.0.0.3/29")}}, now)
	s.Release([]Lease{{Address: netip.MustParsePrefix("10.0.0.2/29")}}, now)
	if s.Full() || len(s.cooling) != 2 {
		t.Errorf("full: %v, %d cool", s.Full(), len(s.cooling))
	}
}

// Leases stay leased when a network's ranges change, and later leases under the old ranges
// are leased under the new ones, too.
func TestChangedRanges(t *testing.T) {
	now := time.Now()
	old := space(t, time.Minute, RangeConf{Subnet: "10.0.0.0/29"})
	addresses(t, old, now, 1)
	s := old.With(space(t, 0, RangeConf{Subnet: "10.0.0.0/28"}).sets)
	addresses(t, old, now, 1)
	old.Release([]Lease{{Address: netip.MustParsePrefix("10.0.0.2/29")}}, now)
	if got := addresses(t, s, now, 1)[0]; got != "10.0.0.4/28" {
		t.Errorf("leased %s: 10.0.0.2 cools, 10.0.0.3 is leased", got)
	}
	if n := old.Taken(); n != 2 {
		t.Errorf("%d addresses are taken, want 2", n)
	}
}

func TestAllSetsOrNone(t *testing.T) {
	now := time.Now()
	four := space(t, 0, RangeConf{Subnet: "10.0.0.0/24"}).sets[0]
	six := space(t, 0, RangeConf{Subnet: "fd00::/126"}).sets[0]
	s := New([]Set{four, six}, 0)
	for range 2 { // fd00::2, fd00::3
		if l, err := s.Allocate(now); err != nil || len(l) != 2 {
			t.Fatal(l, err)
		}
	}
	if _, err := s.Allocate(now); !errors.Is(err, ErrExhausted) {
		t.Fatal(err)
	}
	if n := s.Taken(); n != 4 {
		t.Errorf("%d addresses are taken, want 4", n)
	}
}

func TestReserve(t *testing.T) {
	s := space(t, 0, RangeConf{Subnet: "10.0.0.0/29"})
	s.Reserve([]Lease{{Address: netip.MustParsePrefix("10.0.0.2/29")}})
	if got := addresses(t, s, time.Now(), 1)[0]; got != "10.0.0.3/29" {
		t.Errorf("leased %s", got)
	}
}

func TestRangeErrors(t *testing.T) {
	for want, c := range map[string]RangeConf{
		"such as 10.88.0.0/16":                           {Subnet: "10.0.0.0"},
		"did you mean 10.0.0.0/8":                        {Subnet: "10.1.0.0/8"},
		"has no room":                                    {Subnet: "10.0.0.0/31"},
		"\"0.0.0.0/0\": its addresses are not usable":    {Subnet: "0.0.0.0/0"},
		"\"127.0.0.0/8\": its addresses are not usable":  {Subnet: "127.0.0.0/8"},
		"\"224.0.0.0/24\": its addresses are not usable": {Subnet: "224.0.0.0/24"},
		"\"fe80::/64\": its addresses are not usable":    {Subnet: "fe80::/64"},
		"gateway is":               {Subnet: "10.0.0.0/24", Gateway: "10.0.1.1"},
		"rangeStart is":            {Subnet: "10.0.0.0/24", RangeStart: "x"},
		"is before rangeStart":     {Subnet: "10.0.0.0/24", RangeStart: "10.0.0.9", RangeEnd: "10.0.0.8"},
		"without ::ffff: in front": {Subnet: "::ffff:10.0.0.0/120"},
		"rangeStart is \"10.0.0.0\": not a host address": {Subnet: "10.0.0.0/24", RangeStart: "10.0.0.0"},
		"rangeEnd is \"10.0.0.255\": not a host address": {Subnet: "10.0.0.0/24", RangeEnd: "10.0.0.255"},
		"gateway is \"10.0.0.255\": not a host address":  {Subnet: "10.0.0.0/24", Gateway: "10.0.0.255"},
		"the only address of the range":                  {Subnet: "10.0.0.0/24", RangeEnd: "10.0.0.1"},
	} {
		if _, err := c.Range(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q in it", c, err, want)
		}
	}
}
