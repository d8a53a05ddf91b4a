package contable_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
)

const (
	tcp = unix.IPPROTO_TCP
	udp = unix.IPPROTO_UDP
)

// start is when every test begins; time passes only as they say.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// bed is a table in ordinary memory, which no program reads.
type bed struct {
	*contable.Table
	t          *testing.T
	halves     []datapath.Half // the first page
	memory     datapath.Memory
	candidates []uint64
	settings   *datapath.Settings
	opts       contable.Options
	grace      grace
}

func newBed(t *testing.T, o contable.Options) *bed {
	b := &bed{
		t: t, opts: o,
		halves:     make([]datapath.Half, datapath.PageSlots),
		candidates: make([]uint64, 16),
		settings:   &datapath.Settings{Generation: 1, Seed: 0x5c0},
	}
	buckets := 16
	for buckets < o.Connections {
		buckets *= 2
	}
	pages := 4*o.Connections/datapath.PageSlots + 1
	b.memory = datapath.Memory{
		Halves: make([][]datapath.Half, pages), Outers: make([][]datapath.Outer, pages),
		Buckets: make([]datapath.Bucket, buckets), Settings: b.settings, Candidates: b.candidates,
	}
	b.memory.Halves[0] = b.halves
	b.restart()
	return b
}

// restart is a new daemon on the same table.
func (b *bed) restart() {
	var err error
	b.opts.Grace = &b.grace
	if b.Table, err = contable.New(b.memory, b.opts); err != nil {
		b.t.Fatal(err)
	}
}

// grow adds the pages that the table wants.
func (b *bed) grow() {
	for page, wants := b.Wants(); wants; page, wants = b.Wants() {
		b.AddPage(page, make([]datapath.Half, datapath.PageSlots))
	}
}

// places lists the places that are not free.
func (b *bed) places() (all []*uint32) {
	for i := range b.memory.Buckets {
		for j := range b.memory.Buckets[i].Places {
			if p := &b.memory.Buckets[i].Places[j]; *p != 0 {
				all = append(all, p)
			}
		}
	}
	return all
}

// Sweep sweeps the whole table in small pieces and returns how many Conentries it
// retired.
func (b *bed) Sweep(now time.Time) (retired int) {
	before := b.Len()
	for next := b.Table.Sweep(0, 16, now); next != 0; {
		next = b.Table.Sweep(next, 16, now)
	}
	return before - b.Len()
}

// Totals counts the whole table in small pieces.
func (b *bed) Totals() (byPort map[int]contable.Totals, all contable.Totals) {
	for next := b.Count(0, 16); next != 0; {
		next = b.Count(next, 16)
	}
	return b.Table.Totals()
}

// grace counts grace periods that are over at once, unless some program runs on and on.
type grace struct {
	count   uint64
	running bool
}

func (g *grace) Next() uint64 { return g.count + 1 }

func (g *grace) Over() uint64 {
	if !g.running {
		g.count++
	}
	return g.count
}

// options leave room for everything, and keep idle Conentries for 10 s.
func options() contable.Options {
	return contable.Options{Connections: 64, PerContainer: 64, Idle: 10 * time.Second, Lease: time.Second, Tick: time.Millisecond}
}

// masqueraded is the i-th connection of a container to the outside.
func masqueraded(i int) conntrack.Conn {
	server := netip.MustParseAddrPort("203.0.113.9:443")
	return conntrack.Conn{
		ID:    uint32(i),
		Orig:  conntrack.Tuple{Proto: tcp, Src: at("172.17.0.2", 30000+i), Dst: server},
		Reply: conntrack.Tuple{Proto: tcp, Src: server, Dst: at("192.0.2.1", 50000+i)},
	}
}

// published is the i-th connection to a published port of a container.
func published(i int) conntrack.Conn {
	client := at("198.51.100.7", 40000+i)
	return conntrack.Conn{
		ID:    uint32(i),
		Orig:  conntrack.Tuple{Proto: udp, Src: client, Dst: at("192.0.2.1", 8080)},
		Reply: conntrack.Tuple{Proto: udp, Src: at("172.17.0.2", 80), Dst: client},
	}
}

// over6 is the same connection with addresses of IPv6.
func over6(c conntrack.Conn) conntrack.Conn {
	for _, end := range []*netip.AddrPort{&c.Orig.Src, &c.Orig.Dst, &c.Reply.Src, &c.Reply.Dst} {
		b := netip.MustParseAddr("2001:db8::").As16()
		copy(b[12:], end.Addr().AsSlice())
		*end = netip.AddrPortFrom(netip.AddrFrom16(b), end.Port())
	}
	return c
}

func at(ip string, port int) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(ip), uint16(port))
}

// endOf is where packets of a container enter; each has a bridge of its own.
func endOf(port int) contable.End { return contable.End{Port: port, Bridge: port - 4} }

// compose places a connection whose first packet, if out, is the container's.
func (b *bed) compose(port int, conn conntrack.Conn, out bool, now time.Time) *contable.Conentry {
	b.t.Helper()
	tuple := conn.Reply
	if out {
		tuple = conn.Orig
	}
	e, err := b.Compose(endOf(port), tuple, conn, now)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, h := range []*datapath.Half{b.half(tuple, port), b.half(other(conn, tuple), 0)} {
		if h.Lease != 0 {
			b.t.Errorf("a lease of %d jiffies without SetLease", h.Lease)
		}
	}
	b.SetLease(e, b.opts.Lease)
	return e
}

// other is the other tuple of a connection.
func other(conn conntrack.Conn, tuple conntrack.Tuple) conntrack.Tuple {
	if tuple == conn.Orig {
		return conn.Reply
	}
	return conn.Orig
}

// half returns the slot of one direction, nil if there is none.
func (b *bed) half(tuple conntrack.Tuple, port int) *datapath.Half {
	key := b.KeyOf(tuple, port)
	for _, page := range b.memory.Halves {
		for i := range page {
			if h := &page[i]; h.Key.Addrs == key.Addrs && h.Key.Ports == key.Ports && h.Key.Side == key.Side {
				return h
			}
		}
	}
	return nil
}

// inUse counts slots that are not empty.
func (b *bed) inUse() (n int) {
	for _, page := range b.memory.Halves {
		for i := range page {
			if page[i] != (datapath.Half{}) {
				n++
			}
		}
	}
	return n
}

// Both halves are open, point at each other, and translate as conntrack says.
func TestCompose(t *testing.T) {
	for name, c := range map[string]struct {
		conn conntrack.Conn
		out  bool
	}{
		"container opened it": {masqueraded(1), true},
		"container was asked": {published(1), false},

		"container opened it, IPv6": {over6(masqueraded(1)), true},
		"container was asked, IPv6": {over6(published(1)), false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, options())
			e := b.compose(7, c.conn, c.out, start)
			container, wire := c.conn.Orig, c.conn.Reply
			if !c.out {
				container, wire = wire, container
			}
			out, in := b.half(container, 7), b.half(wire, 0)
			if out == nil || in == nil || b.inUse() != 2 {
				t.Fatalf("halves %v and %v, %d slots in use", out, in, b.inUse())
			}
			if &b.halves[out.Twin] != in || &b.halves[in.Twin] != out {
				t.Errorf("twins are %d and %d", out.Twin, in.Twin)
			}
			if b.At(out.Twin) != e || b.At(in.Twin) != e || b.Lookup(c.conn.Orig) != e || b.Lookup(c.conn.Reply) != e {
				t.Error("the Conentry is not found by its slots and tuples")
			}
			for _, h := range []*datapath.Half{out, in} {
				if h.State != datapath.SlotOpen || h.Generation != 0 || h.OutDev != 0 {
					t.Errorf("%+v: want it open and without a decision", h)
				}
			}
			if got := b.outTuple(out); got != wire.Reverse() {
				t.Errorf("the container's packets become %v, want %v", got, wire.Reverse())
			}
			if got := b.outTuple(in); got != container.Reverse() {
				t.Errorf("packets from the wire become %v, want %v", got, container.Reverse())
			}
			if b.Len() != 1 || b.LenOf(7) != 1 || b.LenOf(8) != 0 {
				t.Errorf("%d Conentries, %d of the port", b.Len(), b.LenOf(7))
			}
		})
	}
}

// outTuple is what packets of a half become.
func (b *bed) outTuple(h *datapath.Half) conntrack.Tuple {
	key := datapath.Key{Addrs: h.OutAddrs, Ports: h.OutPorts, Side: h.Key.Side & (datapath.SideUDP | datapath.SideIPv6)}
	a := b.halves[h.Twin].Addrs6 // as the programs do
	tuple, _ := contable.TupleOf(key, [4]uint64{a[2], a[3], a[0], a[1]})
	return tuple
}

func TestKeyOfAndBack(t *testing.T) {
	b := newBed(t, options())
	for _, conn := range []conntrack.Conn{masqueraded(3), published(4)} {
		for _, port := range []int{0, 1, 1 << 20} {
			if tuple, p := contable.TupleOf(b.KeyOf(conn.Orig, port), [4]uint64{}); tuple != conn.Orig || p != port {
				t.Errorf("%v of port %d came back as %v of %d", conn.Orig, port, tuple, p)
			}
		}
	}
}

// A refused connection leaves nothing behind.
func TestComposeRefuses(t *testing.T) {
	b := newBed(t, contable.Options{Connections: 3, PerContainer: 2, Tick: time.Millisecond})
	b.compose(7, masqueraded(1), true, start)
	b.compose(7, masqueraded(2), true, start)
	v6 := masqueraded(4)
	v6.Orig.Src, v6.Orig.Dst = at("2001:db8::1", 1), at("2001:db8::2", 2)
	for _, c := range []struct {
		name string
		port int
		conn conntrack.Conn
		want error
	}{
		{"the same", 7, masqueraded(1), contable.ErrExists},
		{"the same of another port", 8, masqueraded(1), contable.ErrExists},
		{"a third of one container", 7, masqueraded(3), contable.ErrShare},
		{"of two families", 8, v6, contable.ErrFamily},
	} {
		if _, err := b.Compose(endOf(c.port), c.conn.Orig, c.conn, start); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	b.compose(8, masqueraded(3), true, start)
	if _, err := b.Compose(endOf(9), masqueraded(4).Orig, masqueraded(4), start); !errors.Is(err, contable.ErrFull) {
		t.Errorf("one too many: %v, want %v", err, contable.ErrFull)
	}
	if b.Len() != 3 || b.inUse() != 6 {
		t.Errorf("%d Conentries in %d slots", b.Len(), b.inUse())
	}
}

// A retired Conentry is gone for the daemon at once, and for the programs; its
// slots keep their keys until no program can be reading them.
func TestRetire(t *testing.T) {
	b := newBed(t, options())
	conn := masqueraded(1)
	e := b.compose(7, conn, true, start)
	out, in := b.half(conn.Orig, 7), b.half(conn.Reply, 0)
	out.Generation, in.Generation = 1, 1
	twin := out.Twin

	b.Retire(e)
	b.Retire(e) // again is nothing
	if b.Len() != 0 || b.LenOf(7) != 0 || b.Lookup(conn.Orig) != nil || b.Lookup(conn.Reply) != nil || b.At(twin) != nil {
		t.Error("the Conentry is still found")
	}
	for _, h := range []*datapath.Half{out, in} {
		if h.State != datapath.SlotClosed || h.Generation != 0 || h.Key.Addrs == 0 {
			t.Errorf("%+v: want it closed, with its key", h)
		}
	}
	if _, err := b.Compose(endOf(7), conn.Orig, conn, start); !errors.Is(err, contable.ErrExists) {
		t.Errorf("composing it anew too early: %v", err)
	}
	if b.inUse() != 2 {
		t.Errorf("%d slots in use", b.inUse())
	}

	b.grace.running = true
	b.Release()
	if b.inUse() != 2 {
		t.Error("released too early")
	}
	b.grace.running = false
	b.Release()
	if b.inUse() != 0 {
		t.Errorf("%d slots in use after their release", b.inUse())
	}
	b.compose(7, conn, true, start.Add(time.Second))
}

// All may retire what it visits.
func TestAll(t *testing.T) {
	b := newBed(t, options())
	for i := range 10 {
		b.compose(7, masqueraded(i), true, start)
	}
	visited := 0
	b.All(func(e *contable.Conentry) {
		visited++
		b.Retire(e)
	})
	b.Release()
	if visited != 10 || b.Len() != 0 || b.inUse() != 0 {
		t.Errorf("visited %d, left %d in %d slots", visited, b.Len(), b.inUse())
	}
}

// Pieces of the table have each Conentry once, also when others come and go
// between them.
func TestPiece(t *testing.T) {
	b := newBed(t, options())
	const stay = 10
	for i := range stay {
		b.compose(7, masqueraded(i), true, start)
	}
	gone := b.compose(7, masqueraded(stay), true, start)
	visited, pieces := make(map[uint32]int), 0
	for next := uint32(0); ; {
		next = b.Piece(next, 5, func(e *contable.Conentry) { visited[b.Conn(e).ID]++ })
		if pieces++; pieces == 2 {
			b.Retire(gone)
			b.compose(7, masqueraded(stay+1), true, start)
		}
		if next == 0 {
			break
		}
	}
	for i := range uint32(stay) {
		if visited[i] != 1 {
			t.Errorf("connection %d was visited %d times", i, visited[i])
		}
	}
	if visited[stay] > 1 || visited[stay+1] > 1 || pieces < 2 {
		t.Errorf("visited %v in %d pieces", visited, pieces)
	}
}

// Clear also removes what this table never knew.
func TestClear(t *testing.T) {
	b := newBed(t, options())
	b.compose(7, masqueraded(1), true, start)
	b.Retire(b.compose(7, masqueraded(2), true, start))
	b.restart()
	b.compose(7, masqueraded(3), true, start)
	b.Clear()
	if b.Len() != 0 || b.LenOf(7) != 0 || b.inUse() != 0 || b.Lookup(masqueraded(3).Orig) != nil {
		t.Errorf("%d Conentries left in %d slots", b.Len(), b.inUse())
	}
	b.compose(7, masqueraded(3), true, start)
}

// A walk of a table that is hardly used visits no more than what is around its
// Conentries.
func TestWalkOfLargeTable(t *testing.T) {
	o := options()
	o.Connections = 1 << 18
	b := newBed(t, o)
	pieces := func() (n, found int) {
		for next := uint32(0); ; {
			next = b.Piece(next, 1<<14, func(*contable.Conentry) { found++ })
			if n++; next == 0 {
				return n, found
			}
		}
	}
	for i := range 3 {
		b.compose(7, masqueraded(i), true, start)
	}
	if n, found := pieces(); n != 1 || found != 3 {
		t.Errorf("%d Conentries in %d pieces, want 3 in 1", found, n)
	}
	b.All(func(e *contable.Conentry) { b.Retire(e) })
	b.Sweep(start)
	if n, found := pieces(); n != 1 || found != 0 {
		t.Errorf("%d Conentries in %d pieces, want none", found, n)
	}
}

// There may be a million of them.
func TestSizeOfConentry(t *testing.T) {
	if size := unsafe.Sizeof(contable.Conentry{}); size > 144 {
		t.Errorf("%d bytes", size)
	}
}
