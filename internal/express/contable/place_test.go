package contable_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
)

// patterns are connections as they come: the i-th of each.
var patterns = map[string]func(i int) conntrack.Conn{
	"ports in a row": masqueraded,
	"clients in a row": func(i int) conntrack.Conn {
		c := published(0)
		client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 40000)
		c.Orig.Src, c.Reply.Dst = client, client
		return c
	},
	"servers in a row": func(i int) conntrack.Conn {
		c := masqueraded(0)
		server := netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), 443)
		c.Orig.Dst, c.Reply.Src = server, server
		return c
	},
}

// All but a few of as many connections as a table is made for find a place,
// and practically all of half as many.
func TestFill(t *testing.T) {
	const connections = 8192
	for name, pattern := range patterns {
		for _, seed := range []uint64{0, 1, 0xfeedfacecafebeef} {
			b := newBed(t, contable.Options{Connections: connections, PerContainer: connections, Tick: time.Millisecond})
			b.settings.Seed = seed
			refused := 0
			for i := range connections {
				conn := pattern(i)
				if _, err := b.Compose(endOf(7), conn.Orig, conn, start); err != nil {
					refused++
				}
				if i == connections/2 && refused > connections/2/200 {
					t.Errorf("%s, seed %#x: %d refused of the first %d", name, seed, refused, i)
				}
			}
			if refused > connections*3/100 {
				t.Errorf("%s, seed %#x: %d of %d refused", name, seed, refused, connections)
			}
			if used := b.inUse(); used != 2*(connections-refused) {
				t.Errorf("%s, seed %#x: %d slots in use for %d connections", name, seed, used, connections-refused)
			}
		}
	}
}

// A connection that only one half of finds a place leaves nothing behind.
func TestNoPlaceForOneHalf(t *testing.T) {
	b := newBed(t, options())
	conn := masqueraded(1)
	for i := range b.halves { // all taken but those of the container's direction
		b.halves[i].State = datapath.SlotClosed
	}
	for i := range b.halves {
		b.halves[i].State = datapath.SlotEmpty
		if _, err := b.Compose(endOf(7), conn.Orig, conn, start); err == nil {
			t.Fatal("composed with one slot")
		}
		if b.halves[i] != (datapath.Half{}) {
			t.Fatalf("slot %d: %+v was left behind", i, b.halves[i])
		}
		b.halves[i].State = datapath.SlotClosed
	}
}

func TestSlots(t *testing.T) {
	for connections, want := range map[int]uint32{1: 64, 16: 64, 17: 128, 8192: 32768, 8193: 65536, 1 << 20: 1 << 22} {
		if got := contable.Slots(connections); got != want {
			t.Errorf("Slots(%d) = %d, want %d", connections, got, want)
		}
	}
}
