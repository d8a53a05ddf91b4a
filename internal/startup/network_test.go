package startup

import (
	"log/slog"
	"net/netip"
	"testing"

	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/ipam"
	"github.com/scon-project/scon/internal/startup/pool"
)

// A network that has two others as its neighbours, which are none of each other, leases no
// address of either.
func TestNeighboursOfOne(t *testing.T) {
	s := &networks{records: new(records), log: slog.New(slog.DiscardHandler), of: make(map[string]*network), newPool: func(*network) *pool.Pool { return nil }}
	get := func(name, bridge string, rules ...cni.Rule) *ipam.Space {
		t.Helper()
		r, err := ipam.RangeConf{Subnet: "10.88.0.0/24"}.Range()
		if err != nil {
			t.Fatal(err)
		}
		c := &cni.Conf{Sets: []ipam.Set{{r}}}
		c.Name, c.Kind, c.Bridge, c.Rules, c.IPAM.Type = name, cni.Veth, bridge, rules, cni.OwnIPAM
		return s.get(c).space
	}
	one, two := get("one", "br1"), get("two", "br2")
	both := get("both", "br3", cni.Rule{}) // its rules know containers by their addresses
	seen := make(map[netip.Prefix]string)
	for range 3 {
		for name, space := range map[string]*ipam.Space{"one": one, "two": two, "both": both} {
			l, err := space.Allocate(now())
			if err != nil {
				t.Fatal(err)
			}
			if of := seen[l[0].Address]; of != "" && (name == "both" || of == "both") {
				t.Errorf("%v is leased by %s and %s", l[0].Address, of, name)
			}
			seen[l[0].Address] = name
		}
	}
}
