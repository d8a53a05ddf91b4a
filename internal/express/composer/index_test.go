package composer

import (
	"net/netip"
	"testing"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
)

// An index has each Conentry under what it is, and forgets those that are gone.
func TestIndex(t *testing.T) {
	t.Parallel()
	x := index{kinds: make(map[kind][]candidate)}
	var all []*contable.Conentry
	for i := range 3 {
		own, server := netip.AddrPortFrom(netip.MustParseAddr("172.17.0.2"), uint16(20000+i)), netip.MustParseAddrPort("198.51.100.1:443")
		e := &contable.Conentry{Port: 7}
		e.Conn.Orig, e.Conn.Reply = conntrack.Tuple{Src: own, Dst: server}, conntrack.Tuple{Src: server, Dst: own}
		all = append(all, e)
		x.add(e)
	}
	old := kindOf(all[0])
	all[0].Gone = true
	all[1].Conn.Status = 2
	x.add(all[1])
	if n := len(x.kinds[kindOf(all[1])]); n != 1 {
		t.Errorf("at once %d of the new kind", n)
	}
	x.tidy(nil)
	for k, want := range map[kind]*contable.Conentry{old: all[2], kindOf(all[1]): all[1]} {
		if got := x.kinds[k]; len(got) != 1 || got[0].e != want {
			t.Errorf("%+v has %d", k, len(got))
		}
	}
	all[1].Gone, all[2].Gone = true, true
	if x.tidy(nil); len(x.kinds) != 0 || x.size != 0 {
		t.Errorf("%d kinds are left", len(x.kinds))
	}
	x.size = mostIndexed
	if x.add(all[0]); !x.partial {
		t.Error("an index that is full is not said to be partial")
	}
}
