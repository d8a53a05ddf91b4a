// Package contable is the daemon's side of the Contables ("Intelligent Packet
// Processing for Performant Containers in IoT", section V-B1): it places
// Conentries into the kernel's table, finds idle ones and removes them. The
// programs record the decisions in them.
//
// A Conentry is two slots of the table, one per direction. Only this package
// fills and empties slots. A Table belongs to one goroutine, except for MakeStale.
package contable

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/datapath"
)

// Reasons why a connection gets no Conentry.
var (
	ErrExists = errors.New("the connection has a Conentry already")
	ErrFull   = errors.New("the table is full")
	ErrShare  = errors.New("the container has used up its share of the table")
	ErrFamily = errors.New("the addresses are of different families")
	ErrOther  = errors.New("the connection is another one")
	ErrEnding = errors.New("the connection is ending")
)

// Options bound a Table.
type Options struct {
	// Connections is the most Conentries in all.
	Connections int
	// PerContainer is the most Conentries of one container.
	PerContainer int
	// Idle is how long a Conentry may stay without a packet. If there is room, it
	// stays for twice its longest silence.
	Idle time.Duration
	// Lease is the shortest lease.
	Lease time.Duration
	// LeasePackets is the packets of one direction after which a lease ends.
	LeasePackets uint32
	// Tick is the length of a jiffy, the unit of leases.
	Tick time.Duration
	// Hooked reports whether a device may have SCON's programs: others have no part in
	// any decision. nil is for all devices. Any goroutine may call it.
	Hooked func(ifindex int) bool
	// Grace says until when programs may be using a slot.
	Grace Grace
	// PageSlots is how many slots of each page are used, 0 for all; tests have few.
	PageSlots int
}

// Grace counts RCU grace periods: *datapath.Grace. When one is over, the programs that ran when
// it began have ended.
type Grace interface {
	// Next returns the number of the first one that has not begun yet.
	Next() uint64
	// Over returns the number of the last one that is over, and has another one begin.
	Over() uint64
}

// Table is the set of all Conentries.
type Table struct {
	opts     Options
	made     time.Time
	halves   [][]datapath.Half  // by page
	outers   [][]datapath.Outer // by page
	buckets  []datapath.Bucket
	settings *datapath.Settings
	counts   []uint64 // of candidates
	free     free

	entries  entries
	live     live
	early    early
	bySlot   []uint32 // number of the Conentry + 1 that a slot is one of, 0 for none
	byTuple  tuples
	perPort  map[int]int // entries in a container's share, discards included
	retired  []closedSlots
	returned rhythms
	strays   map[Ref]Elsewhere
	sums     map[int]Totals // as last counted, by port
	sum      Totals         // in all

	retiredDiscards []closedDiscard
	pastDiscarded   Discarded // of discards that are gone
}

// Totals are the express packets of Conentries, living and gone.
type Totals struct {
	Packets, Bytes uint64
	// Of these, what containers sent; the rest is what they received.
	SentPackets, SentBytes uint64
}

// New returns the table in m. It leaves the contents alone until Adopt or
// Clear. The error wraps ENOMEM if the machine has no room for o.Connections.
func New(m datapath.Memory, o Options) (*Table, error) {
	o.PageSlots = cmp.Or(o.PageSlots, datapath.PageSlots)
	slots := len(m.Halves) * datapath.PageSlots
	entries, err := newEntries(slots / 2)
	bySlot, err2 := offHeap[uint32](slots)
	byTuple, err3 := newTuples(o.Connections)
	if err := cmp.Or(err, err2, err3); err != nil {
		return nil, fmt.Errorf("memory for %d connections: %w; make 'connections' smaller in the settings", o.Connections, err)
	}
	t := &Table{
		made:     time.Now(),
		opts:     o,
		halves:   m.Halves,
		outers:   m.Outers,
		buckets:  m.Buckets,
		settings: m.Settings,
		counts:   m.Candidates,
		free:     newFree(len(m.Halves), o.PageSlots),
		entries:  entries,
		live:     newLive(),
		early:    early{ports: make(map[int]*earlyPort)},
		bySlot:   bySlot,
		byTuple:  byTuple,
		perPort:  make(map[int]int),
		returned: make(rhythms),
		strays:   make(map[Ref]Elsewhere),
		sums:     make(map[int]Totals),
	}
	for page := range t.halves {
		if t.halves[page] != nil {
			t.free.add(page, func(slot uint32) bool { return t.half(slot).State == datapath.SlotEmpty })
		}
	}
	return t, nil
}

// Compose publishes a Conentry for a connection between the container at here
// and the outside. tuple is the direction of the container's own packets, one
// of conn's two. The Conentry has no effect until the programs see the
// decision of the regular path.
func (t *Table) Compose(here End, tuple conntrack.Tuple, conn conntrack.Conn, now time.Time) (*Conentry, error) {
	if !oneFamily(conn.Orig.Src, conn.Orig.Dst, conn.Reply.Src, conn.Reply.Dst) {
		return nil, ErrFamily
	}
	if t.isKnown(conn.Orig, conn.Reply) {
		return nil, ErrExists
	}
	if err := t.room(here.Port); err != nil {
		return nil, err
	}
	return t.place(conn, tuple == conn.Orig, here, End{}, now)
}

// ComposeUntracked is Compose for a connection that conntrack does not see. Which end
// opened it is not known: the one with the higher port is assumed. Without here.Bridge only
// what a bridge forwards of it goes express.
func (t *Table) ComposeUntracked(here End, tuple conntrack.Tuple, now time.Time) (*Conentry, error) {
	conn := conntrack.Conn{Orig: tuple, Reply: tuple.Reverse()}
	if !opens(tuple) {
		conn.Orig, conn.Reply = conn.Reply, conn.Orig
	}
	e, err := t.Compose(here, tuple, conn, now)
	if err == nil {
		e.Untracked, e.Bridged = true, here.Bridge == 0
	}
	return e, err
}

// place publishes both halves of a Conentry. The container's packets enter at
// here, those for it at there; initiator says that they are the original direction.
func (t *Table) place(conn conntrack.Conn, initiator bool, here, there End, now time.Time) (*Conentry, error) {
	tuple, wire := conn.Orig, conn.Reply
	if !initiator {
		tuple, wire = wire, tuple
	}
	out, in := t.KeyOf(tuple, here.Port), t.KeyOf(wire, there.Port)
	outbound, err := t.reserve(out)
	if err != nil {
		return nil, err
	}
	inbound, err := t.reserve(in)
	if err != nil {
		t.empty(outbound)
		return nil, err
	}
	e := t.entries.take()
	if e == nil {
		t.empty(outbound)
		t.empty(inbound)
		return nil, ErrFull
	}
	e.port, e.peer, e.outbound, e.inbound, e.initiator = int32(here.Port), int32(there.Port), outbound, inbound, initiator
	e.id, e.Status, e.Mark, e.composed = conn.ID, conn.Status, conn.Mark, t.since(now)
	age := t.takeCount(out)
	if there.Port != 0 {
		age = max(age, t.takeCount(in))
	}
	t.half(e.outbound).InBridge, t.half(e.inbound).InBridge = uint32(here.Bridge), uint32(there.Bridge)
	if here.Bridge == 0 { // as bpf/lib/maps.h has it
		t.half(e.inbound).InBridge = uint32(here.Port)
	}
	if conn.Orig.Proto == unix.IPPROTO_UDP && conn.Confirmed() && !conn.Replied() {
		t.half(e.slots()[1]).Proto.NoReply = 1
	}
	t.half(outbound).Addrs6, t.half(inbound).Addrs6 = native6(tuple), native6(wire)
	t.insert(e)
	t.publish(outbound, inbound, tuple, wire.Reverse())
	t.publish(inbound, outbound, wire, tuple.Reverse())
	e.activity.begin(millisOf(e.composed), max(age, t.returned.take(t.KeyOf(tuple, 0), now)))
	return e, nil
}

func (t *Table) insert(e *Conentry) {
	t.list(e)
	t.index(e)
}

// index makes the rest of the table know a Conentry by its slots and its tuples.
func (t *Table) index(e *Conentry) {
	for _, slot := range e.allSlots() {
		t.bySlot[slot] = e.ref.index + 1
	}
	t.know(e)
	t.perPort[e.Port()]++
}

// publish fills a reserved slot and opens it. The programs find it when it is complete.
func (t *Table) publish(slot, twin uint32, from, to conntrack.Tuple) {
	h := t.half(slot)
	h.Twin = twin
	by := translate(from, to)
	h.OutAddrs, h.OutPorts, h.AddrDelta, h.PortDelta = by.addrs, by.ports, by.addrDelta, by.portDelta
	h.State = datapath.SlotOpen
	t.show(slot)
}

// IsEmpty reports whether nothing can go express: there are no Conentries, nor slots that are
// set aside for early ones.
func (t *Table) IsEmpty() bool { return t.Len() == 0 && t.early.pairs == 0 }

// Len returns how many Conentries there are, discards included.
func (t *Table) Len() int { return t.live.conentries + len(t.live.discards) }

// LenOf returns how many Conentries the container behind port has, discards
// included.
func (t *Table) LenOf(port int) int {
	n := t.perPort[port]
	if c := t.live.ports[port]; c != nil {
		n += c.peers
	}
	return n
}

// oneFamily reports whether addresses are all of IPv4 or all of IPv6.
func oneFamily(all ...netip.AddrPort) bool {
	for _, a := range all {
		if !a.IsValid() || a.Addr().Is4() != all[0].Addr().Is4() {
			return false
		}
	}
	return true
}

// At returns the Conentry that a slot belongs to, or nil.
func (t *Table) At(slot uint32) *Conentry {
	if number := t.bySlot[slot]; number != 0 {
		return &t.entries.all[number-1]
	}
	return nil
}

// All calls fn for every Conentry; fn may retire it.
func (t *Table) All(fn func(*Conentry)) { t.entries.walk(0, uint32(len(t.entries.all)), fn) }

// Piece calls fn for the Conentries in n places of the table, from the one on that
// an earlier call has returned, 0 at first; parts of the table without Conentries do not
// count. It returns 0 at the end of the table. All pieces together have each Conentry once
// that is there all the time.
func (t *Table) Piece(from, n uint32, fn func(*Conentry)) (next uint32) {
	return t.entries.walk(from, n, fn)
}

// Count brings the totals up to date with the Conentries in n places of the table, as
// Piece has them, and with up to n that were retired a moment ago.
func (t *Table) Count(from, n uint32) (next uint32) {
	next = t.Piece(from, n, t.account)
	if next == 0 {
		for _, r := range t.retired[:min(len(t.retired), int(n))] {
			t.account(r.e)
		}
	}
	return next
}

// Totals returns the express packets of all Conentries since the start, by port (0
// for ports that are gone) and in all, as last counted. They never fall. Packets
// between two containers count for both ports.
func (t *Table) Totals() (byPort map[int]Totals, all Totals) {
	return maps.Clone(t.sums), t.sum
}

// account adds what a Conentry's packets have grown by to the totals.
func (t *Table) account(e *Conentry) {
	now := t.express(e)
	more := now.minus(e.counted)
	e.counted = now
	t.sum = t.sum.plus(more)
	t.sums[e.Port()] = t.sums[e.Port()].plus(more)
	if e.peer != 0 {
		t.sums[e.Peer()] = t.sums[e.Peer()].plus(more.reversed())
	}
}

// ForgetPort retires all Conentries of a port that is gone. Its counts move to
// port 0, since another device may get the ifindex.
func (t *Table) ForgetPort(port int) {
	t.among(port, t.Retire)
	t.live.forget(port)
	for _, d := range t.live.discards {
		if d.Port == port {
			t.RetireDiscard(d)
		}
	}
	for _, r := range t.retired {
		if r.e.Port() == port {
			r.e.port = 0
		}
		if r.e.Peer() == port {
			r.e.peer = 0
		}
	}
	t.sums[0] = t.sums[0].plus(t.sums[port])
	delete(t.sums, port)
}

func (s Totals) plus(o Totals) Totals {
	return Totals{
		s.Packets + o.Packets, s.Bytes + o.Bytes,
		s.SentPackets + o.SentPackets, s.SentBytes + o.SentBytes,
	}
}

func (s Totals) minus(o Totals) Totals {
	return Totals{
		s.Packets - o.Packets, s.Bytes - o.Bytes,
		s.SentPackets - o.SentPackets, s.SentBytes - o.SentBytes,
	}
}

// reversed is the same as counted by the container at the other end.
func (s Totals) reversed() Totals {
	s.SentPackets, s.SentBytes = s.Packets-s.SentPackets, s.Bytes-s.SentBytes
	return s
}

// express reads the packets of one Conentry, both directions.
func (t *Table) express(e *Conentry) Totals {
	out, in := t.half(e.outbound), t.half(e.inbound)
	packets, bytes := atomic.LoadUint64(&out.Packets), atomic.LoadUint64(&out.Bytes)
	return Totals{
		packets + atomic.LoadUint64(&in.Packets), bytes + atomic.LoadUint64(&in.Bytes),
		packets, bytes,
	}
}

// Elsewhere is where packets of a connection were seen last that go regular because its
// Conentry's port is another one.
type Elsewhere struct {
	Port  int
	Tuple conntrack.Tuple // of the packets
	At    time.Time
}

// Stray notes that packets of a Conentry enter at another port than its own.
func (t *Table) Stray(e *Conentry, at Elsewhere) { t.strays[e.ref] = at }

// Strays returns what Stray noted of a Conentry last.
func (t *Table) Strays(e *Conentry) (at Elsewhere, noted bool) {
	at, noted = t.strays[e.ref]
	return at, noted
}

// Retire removes a Conentry: from now on its packets go regular.
func (t *Table) Retire(e *Conentry) {
	if !e.isPlaced() {
		return
	}
	for _, slot := range e.allSlots() {
		t.close(slot)
		t.bySlot[slot] = 0
	}
	t.account(e)
	t.unlist(e)
	t.unknow(e)
	delete(t.strays, e.ref)
	e.gone = true
	t.leave(e.Port())
	t.retired = append(t.retired, closedSlots{e: e, until: t.opts.Grace.Next()})
}

// close has the packets of a slot go regular.
func (t *Table) close(slot uint32) {
	h := t.half(slot)
	h.State = datapath.SlotClosed
	atomic.StoreUint32(&h.Generation, 0)
}

// closedSlots wait until no program can be using them.
type closedSlots struct {
	e     *Conentry
	until uint64 // that grace period is over
}

// Release empties the slots that no program can be using any more.
func (t *Table) Release() {
	if len(t.retired)+len(t.retiredDiscards) == 0 {
		return
	}
	over := t.opts.Grace.Over()
	for len(t.retired) > 0 && t.retired[0].until <= over {
		e := t.retired[0].e
		t.account(e)
		for _, slot := range e.allSlots() {
			t.empty(slot)
		}
		t.entries.give(e)
		t.retired = t.retired[1:]
	}
	t.releaseDiscards(over)
}
