package composer

import (
	"net/netip"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
)

// An index has each Conentry under what it is, and forgets those that are gone.
func TestIndex(t *testing.T) {
	t.Parallel()
	x := index{kinds: make(map[kind][]candidate)}
	table, _ := newTable(t, 3)
	var all []*contable.Conentry
	for i := range 3 {
		own, server := netip.AddrPortFrom(netip.MustParseAddr("172.17.0.2"), uint16(20000+i)), netip.MustParseAddrPort("198.51.100.1:443")
		conn := conntrack.Conn{Orig: conntrack.Tuple{Src: own, Dst: server}, Reply: conntrack.Tuple{Src: server, Dst: own}}
		e, err := table.Compose(contable.End{Port: 7}, conn.Orig, conn, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
		x.add(e, table.Conn(e))
	}
	kindOf := func(e *contable.Conentry) kind { return kindOf(e, table.Conn(e)) }
	old := kindOf(all[0])
	table.Retire(all[0])
	all[1].Status = 2
	x.add(all[1], table.Conn(all[1]))
	if n := len(x.kinds[kindOf(all[1])]); n != 1 {
		t.Errorf("at once %d of the new kind", n)
	}
	x.tidy(table)
	for k, want := range map[kind]*contable.Conentry{old: all[2], kindOf(all[1]): all[1]} {
		if got := x.kinds[k]; len(got) != 1 || got[0].ref != want.Ref() {
			t.Errorf("%+v has %d", k, len(got))
		}
	}
	table.Retire(all[1])
	table.Retire(all[2])
	if x.tidy(table); len(x.kinds) != 0 || x.size != 0 {
		t.Errorf("%d kinds are left", len(x.kinds))
	}
	x.size = mostIndexed
	if x.add(all[0], table.Conn(all[0])); !x.partial {
		t.Error("an index that is full is not said to be partial")
	}
}
