package composer

import (
	"testing"

	"github.com/scon-project/scon/internal/express/discover"
)

// bridged is a machine whose containers' ports have bridges, 0 for none.
type bridged struct {
	Ports
	of map[int]int
}

func (b bridged) Port(ifindex int) *discover.Port {
	bridge, ok := b.of[ifindex]
	if !ok {
		return nil
	}
	return &discover.Port{Index: ifindex, Bridge: discover.Bridge{Index: bridge}}
}

// What IP forwards conntrack may see, and what a bridge forwards if that is shown to IP's hooks.
func TestMaySee(t *testing.T) {
	for name, c := range map[string]struct {
		s           subject
		want, shown bool
	}{
		"tracked":                {s: subject{port: 1, peer: 2}},
		"to the outside":         {s: subject{port: 1, untracked: true}, want: true, shown: true},
		"bridged out":            {s: subject{port: 1, untracked: true, bridged: true}, shown: true},
		"within a bridge":        {s: subject{port: 1, peer: 2, untracked: true}, shown: true},
		"between two bridges":    {s: subject{port: 1, peer: 3, untracked: true}, want: true, shown: true},
		"between routed ports":   {s: subject{port: 4, peer: 5, untracked: true}, want: true, shown: true},
		"of a port that is gone": {s: subject{port: 9, peer: 2, untracked: true}, want: true, shown: true},
	} {
		composer := Composer{ports: bridged{of: map[int]int{1: 7, 2: 7, 3: 8, 4: 0, 5: 0}}}
		for _, shown := range []bool{false, true} {
			composer.leases.limits.BridgesCall6 = shown
			want := c.want
			if shown {
				want = c.shown
			}
			if got := composer.maySee(c.s, false); got != want {
				t.Errorf("%s, shown %v: %v, want %v", name, shown, got, want)
			}
		}
	}
}
