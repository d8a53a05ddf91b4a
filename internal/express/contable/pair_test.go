package contable_test

import (
	"errors"
	"testing"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
)

// The ends of connections between two containers in these tests.
var (
	web = endOf(7)
	db  = endOf(8)
)

// between is the i-th connection from a container to the published port of
// another.
func between(i int) conntrack.Conn {
	client := at("172.17.0.2", 30000+i)
	return conntrack.Conn{
		ID:    uint32(i),
		Orig:  conntrack.Tuple{Proto: tcp, Src: client, Dst: at("192.0.2.1", 8080)},
		Reply: conntrack.Tuple{Proto: tcp, Src: at("172.18.0.2", 80), Dst: client},
	}
}

// wantPair checks what the programs find of a connection from web to db.
func (b *bed) wantPair(conn conntrack.Conn) {
	b.t.Helper()
	out, in := b.half(conn.Orig, web.Port), b.half(conn.Reply, db.Port)
	if out == nil || in == nil || out.State != datapath.SlotOpen || in.State != datapath.SlotOpen {
		b.t.Fatalf("halves %+v and %+v", out, in)
	}
	if &b.halves[out.Twin] != in || &b.halves[in.Twin] != out {
		b.t.Errorf("twins %d and %d", out.Twin, in.Twin)
	}
	if int(out.InBridge) != web.Bridge || int(in.InBridge) != db.Bridge {
		b.t.Errorf("bridges %d and %d", out.InBridge, in.InBridge)
	}
}

// The first reply of UDP ends what was decided before it, also where the other end was announced
// later.
func TestJoinKeepsNoReply(t *testing.T) {
	for name, first := range map[string]bool{"opened": true, "called": false} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, options())
			conn, here, there := between(1), web, db
			conn.Orig.Proto, conn.Reply.Proto, conn.Status = udp, udp, 1<<3 // confirmed
			if !first {
				here, there = db, web
			}
			if err := b.Join(b.compose(here.Port, conn, first, start), there); err != nil {
				t.Fatal(err)
			}
			if orig, reply := b.half(conn.Orig, web.Port), b.half(conn.Reply, db.Port); orig.Proto.NoReply != 0 || reply.Proto.NoReply == 0 {
				t.Errorf("a first reply is waited for in %+v, not in %+v", orig, reply)
			}
		})
	}
}

// Whichever end was announced first, the connection is of who opened it, and
// conntrack's messages find it by a slot that never opens.
func TestJoin(t *testing.T) {
	for name, first := range map[string]bool{"opened": true, "called": false} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, options())
			conn, here, there, wire := between(1), web, db, between(1).Reply
			if !first {
				here, there, wire = db, web, conn.Orig
			}
			e := b.compose(here.Port, conn, first, start)
			if err := b.Join(e, there); err != nil {
				t.Fatal(err)
			}
			if e.Port() != web.Port || e.Peer() != db.Port || !e.Initiator() || b.Conn(e).Orig != conn.Orig {
				t.Errorf("%+v", e)
			}
			b.wantPair(conn)
			if marker := b.half(wire, 0); marker == nil || marker.State != datapath.SlotClosed {
				t.Errorf("the marker is %+v", marker)
			}
			if b.LenOf(web.Port) != 1 || b.LenOf(db.Port) != 1 || b.Len() != 1 {
				t.Errorf("%d and %d of %d", b.LenOf(web.Port), b.LenOf(db.Port), b.Len())
			}
			if err := b.Join(e, endOf(9)); !errors.Is(err, contable.ErrExists) {
				t.Errorf("joined again: %v", err)
			}

			b.half(conn.Orig, web.Port).Packets, b.half(conn.Reply, db.Port).Packets = 5, 3
			byPort, all := b.Totals()
			if byPort[web.Port].SentPackets != 5 || byPort[db.Port].SentPackets != 3 || byPort[db.Port].Packets != 8 || all.Packets != 8 {
				t.Errorf("%+v, %+v", byPort, all)
			}
			b.ForgetPort(db.Port)
			b.Release()
			for i := range b.halves {
				if b.halves[i].State != datapath.SlotEmpty {
					t.Errorf("slot %d is left: %+v", i, b.halves[i])
				}
			}
			if _, all := b.Totals(); all.Packets != 8 || b.LenOf(web.Port) != 0 || b.LenOf(db.Port) != 0 {
				t.Errorf("%+v, %d, %d", all, b.LenOf(web.Port), b.LenOf(db.Port))
			}
		})
	}
}

// A connection whose decision was seen has its ends.
func TestJoinDecided(t *testing.T) {
	b := newBed(t, options())
	e := b.compose(web.Port, between(1), true, start)
	b.half(between(1).Orig, web.Port).OutDev = 2
	if err := b.Join(e, db); !errors.Is(err, contable.ErrExists) {
		t.Errorf("joined: %v", err)
	}
}

// The path is known from the packets of either direction.
func TestBridgedEitherDirection(t *testing.T) {
	for _, conn := range []conntrack.Tuple{between(1).Orig, between(1).Reply} {
		b := newBed(t, options())
		e := b.compose(web.Port, between(1), true, start)
		if err := b.Join(e, db); err != nil {
			t.Fatal(err)
		}
		h := b.half(conn, map[bool]int{true: web.Port, false: db.Port}[conn == between(1).Orig])
		h.OutDev, h.Generation, h.Flags = 5, b.settings.Generation, datapath.PathBetween|datapath.PathBridged
		if f := b.Flow(e, start); !f.Bridged || !f.Decided {
			t.Errorf("%v: %+v", conn, f)
		}
	}
}

// Who is called by many uses up no share of its own.
func TestShareOfPairs(t *testing.T) {
	o := options()
	o.PerContainer = 2
	b := newBed(t, o)
	for i := range 2 {
		if err := b.Join(b.compose(web.Port, between(i), true, start), db); err != nil {
			t.Fatal(err)
		}
	}
	e := b.compose(db.Port, between(2), false, start) // announced by who is called
	if err := b.Join(e, web); !errors.Is(err, contable.ErrShare) {
		t.Errorf("a third is joined: %v", err)
	}
	b.Retire(e)
	b.compose(db.Port, masqueraded(1), true, start)
}

// A new daemon takes over pairs, those that conntrack does not know as well; what
// conntrack has lost, or begun to see, goes.
func TestAdoptPairs(t *testing.T) {
	b := newBed(t, options())
	joined, lost := between(1), between(2)
	for _, c := range []conntrack.Conn{joined, lost} {
		if err := b.Join(b.compose(web.Port, c, true, start), db); err != nil {
			t.Fatal(err)
		}
	}
	untracked, seen := between(3).Orig, between(4).Orig
	for _, tuple := range []conntrack.Tuple{untracked, seen} {
		if _, err := b.Pair(db, web, tuple.Reverse(), start); err != nil { // by the one that was called
			t.Fatal(err)
		}
	}
	before := b.half(joined.Orig, web.Port).Twin

	b.restart()
	if n := b.Adopt(anyPort, tracked(joined, conntrack.Conn{ID: 4, Orig: seen, Reply: seen.Reverse()}), start); n != 2 {
		t.Errorf("adopted %d", n)
	}
	b.wantPair(joined)
	if e := b.Lookup(joined.Reply); e == nil || e.Port() != web.Port || e.Peer() != db.Port || e.Untracked || b.half(joined.Orig, web.Port).Twin != before {
		t.Errorf("the tracked one is %+v", e)
	}
	if e := b.Lookup(untracked); e == nil || e.Port() != web.Port || e.Peer() != db.Port || !e.Untracked || b.Conn(e).Orig != untracked {
		t.Errorf("the untracked one is %+v", e)
	}
	left := 0
	for i := range b.halves {
		if b.halves[i].State != datapath.SlotEmpty {
			left++
		}
	}
	if left != 5 || b.LenOf(db.Port) != 2 {
		t.Errorf("%d slots, %d Conentries of db", left, b.LenOf(db.Port))
	}
}
