package copier

import (
	"errors"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// direction is one of a connection: from the sender's
// ring to the receiver's. It belongs to a worker's thread. Positions count the
// bytes of the stream, as the applications' do.
//
// Stages of a piece:
//
//  1. offer reads how far the sender has come, and how far the receiver; what
//     cannot be ends the connection.
//  2. A piece that both rings have in one, or that was lent, becomes an entry of
//     the table, and of the submission queue.
//  3. The stack copies it.
//  4. done frees it in the sender's ring, shows it in the receiver's, and rings
//     for whoever waits.
type direction struct {
	carriage *carriage
	number   uint16 // of the table
	from, to *memory

	send, recv ring
	offered    uint64 // up to where copies are under way
	table      table
	copied     atomic.Uint64 // up to where they are done; Status reads it

	loans   uint64    // how many were read
	loan    span      // the newest of them
	leaving []*shared // regions that are lent no more

	signaledRead, signaledWrite uint32 // what the applications waited for when they were rung last
	armed                       uint32 // how often they were asked to ring
	wantsRoom                   bool   // the receiver was
	listed                      bool   // with the worker, as one to look at
	vain                        int    // how often there was nothing to do
	last                        bool   // the sender has left: no more comes
	over                        bool
}

// ring is a generation of a ring in use.
type ring struct {
	*shared
	generation uint32
	start      uint64 // position of its first byte
}

// room is how much of the ring is free, when used up to head and given back up
// to tail, and whether that can be.
func (r *ring) room(head, tail uint64) (uint64, bool) {
	used := head - max(tail, r.start)
	if tail > head || used > r.size {
		return 0, false
	}
	return r.size - used, true
}

// piece is how much of n bytes at a position lie in one.
func (r *ring) piece(at, n uint64) uint64 { return min(n, r.size-at%r.size) }

func (r *ring) place(at uint64) place { return placeOf(r.region, at%r.size) }

// table is a send buffer table: what was offered and is not yet freed, in the
// order of the stream. In the receiver's ring the same bytes stand at the same
// positions, so it is the receive buffer table as well.
type table struct {
	entries [tableDepth]tableEntry
	first   uint16
	count   uint16
}

type tableEntry struct {
	len  uint32
	done bool
}

const (
	tableDepth = 64
	// mostPiece: the receiver reads a piece while the next is copied.
	mostPiece = 128 << 10
)

// errProtocol is of positions that a process has written and that cannot be.
var errProtocol = errors.New("impossible positions")

// offer submits what can be copied. It returns false if nothing can.
func (y *direction) offer(w *worker) (some bool, err error) {
	for int(y.table.count) < min(w.stack.depth(), tableDepth) {
		n, err := y.ready()
		if n == 0 || err != nil {
			return some, err
		}
		from, n, err := y.source(n)
		if n == 0 || err != nil {
			return some, err
		}
		seq := (y.table.first + y.table.count) % tableDepth
		if !w.queues.submit(entry{
			Kind: kindGeneralSend, CID: y.from.cid, Len: uint32(n), Conn: y.carriage.number, Table: y.number, Seq: seq,
			Src: uint64(from), Dst: uint64(y.recv.place(y.offered)),
		}) {
			return some, nil
		}
		y.table.entries[seq] = tableEntry{len: uint32(n)}
		y.table.count++
		y.offered += n
		some = true
	}
	return some, nil
}

// ready is how many bytes can be copied next.
func (y *direction) ready() (n uint64, err error) {
	waiting, err := y.waiting()
	if err != nil || waiting == 0 {
		return 0, err
	}
	room, err := y.room()
	if err != nil {
		return 0, err
	}
	n = min(waiting, room, mostPiece)
	return y.recv.piece(y.offered, n), nil
}

// waiting is how many bytes the sender has put into its ring that were not
// offered; of one generation.
func (y *direction) waiting() (uint64, error) { return y.waitingIn(&y.from.page.page().Own) }

// stated is what a sender says while it goes on: each call reads it anew.
type stated interface {
	head() uint64
	generation() uint32
	switchAt() uint64
}

func (s *side) head() uint64       { return s.Head.Load() }
func (s *side) generation() uint32 { return s.Generation.Load() }
func (s *side) switchAt() uint64   { return s.SwitchAt.Load() }

func (y *direction) waitingIn(own stated) (uint64, error) {
	// In this order: a head beyond a switch shows that there was one.
	head := own.head()
	generation := own.generation()
	if generation != y.send.generation {
		if y.table.count > 0 {
			return 0, nil
		}
		at := own.switchAt()
		head = own.head() // not before what precedes the switch
		switch {
		case at == y.offered:
			if generation < y.send.generation || uint64(generation) >= uint64(len(y.from.send)) {
				if y.carriage.worker.behind() { // it may be a ring that was made just now
					return 0, nil
				}
				return 0, errProtocol
			}
			y.carriage.worker.leave(y.send.shared)
			y.send = ring{y.from.send[generation], generation, at}
		case at < y.offered || at > head:
			return 0, errProtocol
		default:
			head = at
		}
	}
	if _, ok := y.send.room(head, y.copied.Load()); !ok || head < y.offered {
		return 0, errProtocol
	}
	return head - y.offered, nil
}

// room of the receiver's ring. When the receiver has left the one before, a
// larger one takes over.
func (y *direction) room() (uint64, error) {
	tail := y.to.page.page().Own.Tail.Load()
	if newest := uint32(len(y.to.recv)) - 1; newest != y.recv.generation && y.mayLeave(tail) {
		y.carriage.worker.leave(y.recv.shared)
		y.recv = ring{y.to.recv[newest], newest, y.offered}
		peer := &y.to.page.page().Peer
		peer.SwitchAt.Store(y.offered)
		peer.Generation.Store(newest)
	}
	if tail > y.copied.Load() {
		return 0, errProtocol
	}
	room, ok := y.recv.room(y.offered, tail)
	if !ok {
		return 0, errProtocol
	}
	return room, nil
}

// mayLeave says whether the receiver's ring can be left: the receiver has begun
// with it, or never will.
func (y *direction) mayLeave(tail uint64) bool {
	return y.table.count == 0 && (tail > y.recv.start || y.offered == y.recv.start)
}

// done hears that an entry was carried out.
func (y *direction) done(seq uint16) {
	y.table.entries[seq%tableDepth].done = true
	copied := y.copied.Load()
	for y.table.count > 0 && y.table.entries[y.table.first].done {
		copied += uint64(y.table.entries[y.table.first].len)
		y.table.first = (y.table.first + 1) % tableDepth
		y.table.count--
	}
	y.copied.Store(copied)
	y.letGo()
	// The sender first: whoever hears of the bytes may reuse what they came from.
	y.from.page.page().Peer.Tail.Store(copied)
	y.to.page.page().Peer.Head.Store(copied)
	y.signalReceiver()
	y.signalSender()
}

func (y *direction) signalReceiver() {
	if wait := y.to.page.page().Own.ReadWait.Load(); wait != y.signaledRead {
		y.signaledRead = wait
		y.to.Wake()
	}
}

// signalSender waits until there is room to go on, as the library does.
func (y *direction) signalSender() {
	own := &y.from.page.page().Own
	wait := own.WriteWait.Load()
	if wait == y.signaledWrite || own.Head.Load()-y.copied.Load() > y.send.size/2 {
		return
	}
	y.signaledWrite = wait
	y.from.Wake()
}

// end passes on that the sender sends no more, and hangs up on the receiver when
// it has left.
func (y *direction) end() {
	if y.over || y.table.count > 0 {
		return
	}
	waiting, err := y.waiting()
	if err != nil || waiting > 0 {
		return
	}
	own, peer := &y.from.page.page().Own, &y.to.page.page().Peer
	// The head was read before: what came after it is for the next time.
	if own.Fin.Load() != 0 && peer.Fin.Load() == 0 && own.Head.Load() == y.offered {
		peer.Fin.Store(1)
		y.to.Wake()
	}
	if y.last {
		y.over = true
		y.to.hangUp()
	}
}

// arm asks the sender to ring, or the receiver if it is room that is wanting, and
// returns whether there is something to do already.
func (y *direction) arm() bool {
	y.armed++
	y.from.page.page().Peer.ReadWait.Store(y.armed)
	waiting, err := y.waiting()
	if waiting == 0 || err != nil {
		return err != nil
	}
	y.wantsRoom = true
	y.to.page.page().Peer.WriteWait.Store(y.armed)
	n, err := y.ready()
	return n > 0 || err != nil
}

// deafen tells the sender that nobody reads any more.
func (y *direction) deafen() {
	if peer := &y.from.page.page().Peer; peer.Deaf.Load() == 0 {
		peer.Deaf.Store(1)
		y.from.Wake()
	}
}

// hangUp wakes a process for good.
func (m *memory) hangUp() { _ = unix.Shutdown(m.bell, unix.SHUT_RDWR) }
