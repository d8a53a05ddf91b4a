package contable_test

import (
	"errors"
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

// As many connections as a table is made for find a place, also if each takes three: its
// buckets are three quarters full then.
func TestFill(t *testing.T) {
	const connections = 8192
	for name, pattern := range patterns {
		for _, seed := range []uint64{0, 1, 0xfeedfacecafebeef} {
			b := newBed(t, contable.Options{Connections: connections, PerContainer: connections, Tick: time.Millisecond})
			b.settings.Seed = seed
			for i := range connections {
				b.grow()
				conn := pattern(i)
				e, err := b.Compose(endOf(7), conn.Orig, conn, start)
				if err == nil {
					err = b.Join(e, endOf(8))
				}
				if err != nil {
					t.Fatalf("%s, seed %#x: connection %d: %v", name, seed, i, err)
				}
			}
			if used, places := b.inUse(), len(b.places()); used != 3*connections || places != used {
				t.Errorf("%s, seed %#x: %d slots and %d places in use for %d connections", name, seed, used, places, connections)
			}
		}
	}
}

// Where both buckets of a key are full, places are moved: a table whose buckets are nine
// tenths full refuses none, and every half is found.
func TestPlacesAreMoved(t *testing.T) {
	b := newBed(t, contable.Options{Connections: 1024, PerContainer: 1024, Lease: time.Second, Tick: time.Millisecond})
	b.memory.Buckets = b.memory.Buckets[:512]
	b.restart()
	var conns []conntrack.Conn
	for i := range 920 {
		conns = append(conns, masqueraded(i))
		b.compose(7, conns[i], true, start)
	}
	b.restart()
	if n := b.Adopt(anyPort, tracked(conns...), start); n != len(conns) || len(b.places()) != 2*n {
		t.Errorf("%d are found, by %d places", n, len(b.places()))
	}
}

// A daemon that has died while it moved a place leaves two of one slot.
func TestSecondPlaceGoes(t *testing.T) {
	b := newBed(t, options())
	conn := masqueraded(1)
	b.compose(7, conn, true, start)
	was := b.places()
	for i := range b.memory.Buckets { // also where it does not belong
		if b.memory.Buckets[i].Places[3] == 0 {
			b.memory.Buckets[i].Places[3] = *was[0]
		}
	}
	b.restart()
	if n := b.Adopt(anyPort, tracked(conn), start); n != 1 || len(b.places()) != 2 {
		t.Errorf("adopted %d, with %d places", n, len(b.places()))
	}
	b.Retire(b.Lookup(conn.Orig))
	b.Release()
	if places := len(b.places()); places != 0 || b.inUse() != 0 {
		t.Errorf("%d places are left, %d slots", places, b.inUse())
	}
}

// A connection that only one half of finds a slot, or a place, leaves nothing behind.
func TestNoPlaceForOneHalf(t *testing.T) {
	conn := masqueraded(1)
	t.Run("slot", func(t *testing.T) {
		o := options()
		o.PageSlots = 1
		b := newBed(t, o)
		if _, err := b.Compose(endOf(7), conn.Orig, conn, start); !errors.Is(err, contable.ErrFull) || b.inUse() != 0 || len(b.places()) != 0 {
			t.Errorf("%v: %d slots, %d places in use", err, b.inUse(), len(b.places()))
		}
	})
	t.Run("place", func(t *testing.T) {
		b := newBed(t, options())
		const another = 2<<datapath.SlotBits | 99 // being filled
		for i := range b.memory.Buckets {
			b.memory.Buckets[i].Places = [4]uint32{another, another, another, another}
		}
		for i := range b.memory.Buckets {
			p := &b.memory.Buckets[i].Places[i%4]
			*p = 0
			if _, err := b.Compose(endOf(7), conn.Orig, conn, start); !errors.Is(err, contable.ErrFull) || b.inUse() != 0 || *p != 0 {
				t.Fatalf("%v: %d slots in use, the place is %#x", err, b.inUse(), *p)
			}
			*p = another
		}
	})
}
