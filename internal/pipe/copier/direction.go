package copier

import (
	"errors"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// direction is one direction of a connection: from the sender's ring to the receiver's. Only
// the worker's thread uses it. Positions count the bytes of the stream from its start, as
// the counters in the pages do.
//
// A piece passes these stages:
//
//  1. submit reads the sender's head and the receiver's tail. Impossible values reset the
//     connection.
//  2. A piece that is contiguous in both rings, or in a lent buffer, becomes an entry of the
//     table and of the submission queue.
//  3. The stack copies it.
//  4. done publishes the new tail to the sender and the new head to the receiver, and
//     signals the doorbell of an end that waits.
type direction struct {
	carriage *carriage
	number   uint16 // index in carriage.directions
	from, to *memory

	send, recv ring
	submitted  uint64 // position up to which copies were submitted
	table      table
	copied     atomic.Uint64 // position up to which copies are complete

	loans    uint64    // loans read from the page
	loan     span      // the newest of them
	returned []*shared // buffers taken back while copies were in progress

	signaledRead, signaledWrite uint32  // ReadWait and WriteWait at the last signals
	armed                       uint32  // number of requests for a doorbell
	wantsRoom                   bool    // the receiver was asked for a doorbell
	scheduled                   bool    // in a poll list
	payer                       *memory // the end whose share has it in its poll list
	idlePolls                   int     // successive polls without work
	senderLeft                  bool    // the sender's end is closed
	over                        bool    // no further copies
}

// ring is the generation of a ring that is in use.
type ring struct {
	*shared
	generation uint32
	start      uint64 // position of its first byte
}

// room returns the free bytes of the ring for the positions head and tail; false if these
// are impossible.
func (r *ring) room(head, tail uint64) (uint64, bool) {
	used := head - max(tail, r.start)
	if tail > head || used > r.size {
		return 0, false
	}
	return r.size - used, true
}

// piece returns how many of the n bytes at a position are contiguous.
func (r *ring) piece(at, n uint64) uint64 { return min(n, r.size-at%r.size) }

// place returns the location of a position.
func (r *ring) place(at uint64) place { return placeOf(r.region, at%r.size) }

// table is a send buffer table (PipeDevice, section IV): the submitted pieces that are not
// yet freed, in stream order. The receiver's ring has the same bytes at the same positions,
// so it serves as the receive buffer table, too.
type table struct {
	entries [tableDepth]tableEntry
	first   uint16
	count   uint16
}

type tableEntry struct {
	len  uint32 // bytes
	done bool   // copied; freed once all earlier entries are
}

const tableDepth = 64 // entries

// errProtocol: a process has written impossible positions into its page.
var errProtocol = errors.New("impossible positions")

// submit submits the pieces that can be copied now, and reports whether there were any.
func (y *direction) submit(w *worker) (some bool, err error) {
	for int(y.table.count) < min(w.stack.depth(), tableDepth) {
		n, byReceiver, err := y.ready()
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
			Src: uint64(from), Dst: uint64(y.recv.place(y.submitted)),
		}) {
			return some, nil
		}
		y.table.entries[seq] = tableEntry{len: uint32(n)}
		y.table.count++
		y.submitted += n
		y.charge(n, byReceiver && from.region() == y.send.region)
		some = true
	}
	return some, nil
}

// ready returns how many bytes can be copied next, and whether more could be if the receiver
// had more room.
func (y *direction) ready() (n uint64, byReceiver bool, err error) {
	waiting, err := y.waiting()
	if err != nil || waiting == 0 {
		return 0, false, err
	}
	room, err := y.room()
	if err != nil {
		return 0, false, err
	}
	most := y.carriage.worker.stack.mostPiece()
	n = min(waiting, room, most)
	return y.recv.piece(y.submitted, n), room < min(waiting, most), nil
}

// waiting returns how many bytes of one generation of the sender's ring were not submitted
// yet.
func (y *direction) waiting() (uint64, error) { return y.waitingIn(&y.from.page.page().Own) }

// counters are a sender's counters. Each call reads the page, which the sender may change at
// any time.
type counters interface {
	head() uint64
	generation() uint32
	switchAt() uint64
}

func (s *side) head() uint64       { return s.Head.Load() }
func (s *side) generation() uint32 { return s.Generation.Load() }
func (s *side) switchAt() uint64   { return s.SwitchAt.Load() }

func (y *direction) waitingIn(own counters) (uint64, error) {
	// In this order: a head beyond a switch implies the new generation.
	head := own.head()
	generation := own.generation()
	if generation != y.send.generation {
		if y.table.count > 0 {
			return 0, nil
		}
		at := own.switchAt()
		head = own.head() // read again: it may precede the switch
		switch {
		case at == y.submitted:
			if generation < y.send.generation || uint64(generation) >= uint64(len(y.from.send)) {
				if y.carriage.worker.pending() { // enlarge may be waiting there
					return 0, nil
				}
				return 0, errProtocol
			}
			y.carriage.worker.dropRegion(y.send.shared)
			y.send = ring{y.from.send[generation], generation, at}
		case at < y.submitted || at > head:
			return 0, errProtocol
		default:
			head = at
		}
	}
	if _, ok := y.send.room(head, y.copied.Load()); !ok || head < y.submitted {
		return 0, errProtocol
	}
	return head - y.submitted, nil
}

// room returns the free bytes of the receiver's ring. It switches to a larger ring, if there
// is one, when the receiver has finished with the previous one.
func (y *direction) room() (uint64, error) {
	tail := y.to.page.page().Own.Tail.Load()
	if newest := uint32(len(y.to.recv)) - 1; newest != y.recv.generation && y.maySwitch(tail) {
		y.carriage.worker.dropRegion(y.recv.shared)
		y.recv = ring{y.to.recv[newest], newest, y.submitted}
		peer := &y.to.page.page().Peer
		peer.SwitchAt.Store(y.submitted)
		peer.Generation.Store(newest)
	}
	if tail > y.copied.Load() {
		return 0, errProtocol
	}
	room, ok := y.recv.room(y.submitted, tail)
	if !ok {
		return 0, errProtocol
	}
	return room, nil
}

// maySwitch reports whether the receiver's current ring can be replaced: the receiver has
// started to read it, or no byte was submitted to it.
func (y *direction) maySwitch(tail uint64) bool {
	return y.table.count == 0 && (tail > y.recv.start || y.submitted == y.recv.start)
}

// done handles the completion of an entry.
func (y *direction) done(seq uint16) {
	y.table.entries[seq%tableDepth].done = true
	copied := y.copied.Load()
	for y.table.count > 0 && y.table.entries[y.table.first].done {
		copied += uint64(y.table.entries[y.table.first].len)
		y.table.first = (y.table.first + 1) % tableDepth
		y.table.count--
	}
	y.copied.Store(copied)
	y.dropReturned()
	// The sender first: a process that learns of the bytes may reuse their source.
	y.from.page.page().Peer.Tail.Store(copied)
	y.to.page.page().Peer.Head.Store(copied)
	y.signalReceiver()
	y.signalSender()
}

// signalReceiver signals the receiver if it waits for bytes.
func (y *direction) signalReceiver() {
	if wait := y.to.page.page().Own.ReadWait.Load(); wait != y.signaledRead {
		y.signaledRead = wait
		y.to.Wake()
	}
}

// signalSender signals a sender that waits for room, once half of its ring is free, as the
// library does.
func (y *direction) signalSender() {
	own := &y.from.page.page().Own
	wait := own.WriteWait.Load()
	if wait == y.signaledWrite || own.Head.Load()-y.copied.Load() > y.send.size/2 {
		return
	}
	y.signaledWrite = wait
	y.from.Wake()
}

// passFin passes the sender's FIN on after its last byte. If the sender's end is closed, it
// then shuts the receiver's doorbell down.
func (y *direction) passFin() {
	if y.over || y.table.count > 0 {
		return
	}
	waiting, err := y.waiting()
	if err != nil || waiting > 0 {
		return
	}
	own, peer := &y.from.page.page().Own, &y.to.page.page().Peer
	// waiting has read the head before Fin: bytes that follow that head are copied first.
	if own.Fin.Load() != 0 && peer.Fin.Load() == 0 && own.Head.Load() == y.submitted {
		peer.Fin.Store(1)
		y.to.Wake()
	}
	if y.senderLeft {
		y.over = true
		y.to.hangUp()
	}
}

// arm requests a doorbell: from the sender for new bytes, or from the receiver for room if
// bytes are waiting. It reports whether there is work already.
func (y *direction) arm() bool {
	y.armed++
	y.from.page.page().Peer.ReadWait.Store(y.armed)
	waiting, err := y.waiting()
	if waiting == 0 || err != nil {
		return err != nil
	}
	y.wantsRoom = true
	y.to.page.page().Peer.WriteWait.Store(y.armed)
	n, _, err := y.ready()
	return n > 0 || err != nil
}

// shutSender passes on to the sender that the receiver receives no more.
func (y *direction) shutSender() {
	if peer := &y.from.page.page().Peer; peer.RecvClosed.Load() == 0 {
		peer.RecvClosed.Store(1)
		y.from.Wake()
	}
}

// hangUp shuts the doorbell down, which wakes the process and reports EOF from then on.
func (m *memory) hangUp() { _ = unix.Shutdown(m.bell, unix.SHUT_RDWR) }
