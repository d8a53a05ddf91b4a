package contable_test

import (
	"errors"
	"testing"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/datapath"
)

// tracked answers as conntrack does: by either tuple.
func tracked(conns ...conntrack.Conn) func(conntrack.Tuple) (conntrack.Conn, error) {
	return func(t conntrack.Tuple) (conntrack.Conn, error) {
		for _, c := range conns {
			if t == c.Orig || t == c.Reply {
				return c, nil
			}
		}
		return conntrack.Conn{}, conntrack.ErrNotFound
	}
}

func anyPort(int) bool { return true }

// A new daemon takes over what the earlier one left, decisions included.
func TestAdopt(t *testing.T) {
	b := newBed(t, options())
	conns := []conntrack.Conn{masqueraded(1), published(2)}
	b.compose(7, conns[0], true, start)
	b.compose(8, conns[1], false, start)
	for i := range b.halves {
		if h := &b.halves[i]; h.State == datapath.SlotOpen {
			h.Generation, h.OutDev, h.Packets = 1, 3, 5
		}
	}
	before := append([]datapath.Half(nil), b.halves...)

	b.restart()
	if n := b.Adopt(anyPort, tracked(conns...), start); n != 2 {
		t.Fatalf("adopted %d Conentries, want 2", n)
	}
	for i := range b.halves {
		if b.halves[i] != before[i] {
			t.Errorf("slot %d was %+v, is %+v", i, before[i], b.halves[i])
		}
	}
	if e := b.Lookup(conns[0].Reply); e == nil || e.Port() != 7 || b.Conn(e).ID != 1 {
		t.Errorf("the first is %v", e)
	}
	if e := b.Lookup(conns[1].Orig); e == nil || e.Port() != 8 || b.LenOf(8) != 1 {
		t.Errorf("the second is %v", e)
	}
	if _, all := b.Totals(); all.Packets != 20 {
		t.Errorf("%d express packets, want 20", all.Packets)
	}
	b.Retire(b.Lookup(conns[0].Orig))
	if b.Len() != 1 || b.LenOf(7) != 0 {
		t.Errorf("%d left after one was retired", b.Len())
	}
}

// What is damaged, or no longer true, is removed; what is sound stays.
func TestAdoptRefuses(t *testing.T) {
	sound, other := masqueraded(1), masqueraded(2)
	for name, c := range map[string]struct {
		port   int // of the other connection
		now    []conntrack.Conn
		damage func(b *bed, out, in *datapath.Half)
	}{
		"twin out of range":        {damage: func(_ *bed, out, _ *datapath.Half) { out.Twin = 1 << 31 }},
		"twin is itself":           {damage: func(_ *bed, out, in *datapath.Half) { out.Twin = in.Twin }},
		"twin points elsewhere":    {damage: func(_ *bed, _, in *datapath.Half) { in.Twin++ }},
		"twin of another":          {damage: func(b *bed, out, _ *datapath.Half) { out.Twin = b.half(sound.Orig, 7).Twin }},
		"half open":                {damage: func(_ *bed, _, in *datapath.Half) { *in = datapath.Half{} }},
		"half open, other half":    {damage: func(_ *bed, out, _ *datapath.Half) { *out = datapath.Half{} }},
		"closed":                   {damage: func(_ *bed, out, in *datapath.Half) { out.State, in.State = 2, 2 }},
		"half closed":              {damage: func(_ *bed, _, in *datapath.Half) { in.State = datapath.SlotClosed }},
		"unknown state":            {damage: func(_ *bed, out, _ *datapath.Half) { out.State = 77 }},
		"another's wire tuple":     {damage: func(_ *bed, _, in *datapath.Half) { in.Key.Ports++ }},
		"wire half of a container": {damage: func(_ *bed, _, in *datapath.Half) { in.Key.Side |= 9 << 1 }},
		"sends elsewhere":          {damage: func(_ *bed, out, _ *datapath.Half) { out.OutAddrs ^= 1 << 40 }},
		"delivers elsewhere":       {damage: func(_ *bed, _, in *datapath.Half) { in.OutPorts ^= 1 }},
		"wrong delta":              {damage: func(_ *bed, out, _ *datapath.Half) { out.AddrDelta++ }},
		"wrong delta of the ports": {damage: func(_ *bed, _, in *datapath.Half) { in.PortDelta-- }},
		"not in conntrack":         {now: []conntrack.Conn{sound}},
		"translated otherwise":     {now: []conntrack.Conn{sound, {Orig: other.Orig, Reply: masqueraded(3).Reply}}},
		"port is gone":             {port: 9},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, options())
			port := max(c.port, 8)
			b.compose(7, sound, true, start)
			b.compose(port, other, true, start)
			if c.damage != nil {
				c.damage(b, b.half(other.Orig, port), b.half(other.Reply, 0))
			}
			if c.now == nil {
				c.now = []conntrack.Conn{sound, other}
			}
			b.restart()
			if n := b.Adopt(func(port int) bool { return port != 9 }, tracked(c.now...), start); n != 1 {
				t.Errorf("adopted %d Conentries, want 1", n)
			}
			if b.Lookup(sound.Orig) == nil || b.Lookup(other.Orig) != nil || b.inUse() != 2 {
				t.Errorf("sound: %v, other: %v, %d slots in use", b.Lookup(sound.Orig), b.Lookup(other.Orig), b.inUse())
			}
		})
	}
}

// When conntrack cannot be asked, nothing is believed.
func TestAdoptWithoutConntrack(t *testing.T) {
	b := newBed(t, options())
	b.compose(7, masqueraded(1), true, start)
	b.restart()
	ask := func(conntrack.Tuple) (conntrack.Conn, error) { return conntrack.Conn{}, errors.New("no answer") }
	if n := b.Adopt(anyPort, ask, start); n != 0 || b.inUse() != 0 {
		t.Errorf("adopted %d, %d slots in use", n, b.inUse())
	}
}

// The same connection twice, by two ports: only one can be right.
func TestAdoptOnce(t *testing.T) {
	b := newBed(t, options())
	conn := masqueraded(1)
	b.compose(7, conn, true, start)
	saved := append([]datapath.Half(nil), b.halves...)
	b.Clear()
	b.compose(8, conn, true, start)
	for i := range saved { // both outbound halves, one inbound
		if saved[i].Key.Side>>1 == 7 {
			b.halves[i] = saved[i]
		}
	}
	b.restart()
	if n := b.Adopt(anyPort, tracked(conn), start); n != 1 || b.inUse() != 2 {
		t.Errorf("adopted %d, %d slots in use", n, b.inUse())
	}
}
