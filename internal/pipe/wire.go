package pipe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// The protocol between library and broker: requests and replies of one packet
// each, in turn, over a SOCK_SEQPACKET socket. libsconpipe/src/wire.h has the
// same layout in C. Integers are in the machine's order.
const (
	wireVersion = 3
	messageSize = 64
)

// op is what a request asks for.
type op uint32

const (
	opHello    op = iota + 1 // Arg: version. The first request of a session.
	opBind                   // Engines; with a TCP socket of the process that listens: a name. Reply: ID, Local.
	opListen                 // ID, Arg: backlog. Reply: a socket with a packet for each connection that waits, at its end when the name is gone.
	opAccept                 // ID. Reply: an end, as opConnect's, or EAGAIN.
	opConnect                // Engines; with a TCP socket of the process that has connected to a name. Reply: ID, Engine, Size, names; files: doorbell, own page, ring; of copier that to send by, then that to receive by.
	opMapped                 // ID, Arg: generation: what this end writes to is mapped.
	opRing                   // ID, Arg: generation. Reply: Size, Generation; files: for generation 0 of sealed the peer's page, then the ring. EAGAIN if it is not ready.
	opGrow                   // ID, Size. Reply: Size, Generation; files: of sealed the new ring.
	opClose                  // ID: of a name or an end; Arg: messages sent; Size: of unix, bytes sent.
	opWake                   // ID: ring the own doorbell of an end or a name.
	opEnded                  // ID: whether its peer has ended in good order; ECONNRESET.
	opAttach                 // With a TCP socket. Reply: ID; file: doorbell, which rings when there is an answer to opAttached.
	opAttached               // ID. Reply: as opConnect's, Generation: 1 for the end that connected; files: page, ring. EAGAIN while the other end has not come.
	opDetach                 // With a TCP socket that is attached: both ends go on by TCP. When the reply comes, no byte goes by the rings any more.
	opLend                   // ID; with memory to send from. Reply: Generation: its number. Of copier.
	opTakeBack               // ID, Arg: number: that is lent no more.
	opLast     = opTakeBack
)

// request is what a client asks.
type request struct {
	Op      op
	ID      uint32
	Arg     uint32
	Engines engineSet
	Size    uint64
	file    int // that came with it, or -1; closed after the reply
}

// reply is what it is answered.
type reply struct {
	Errno      uint32 // 0 for success
	ID         uint32
	Engine     Engine
	Generation uint32
	Peer       netip.AddrPort
	Local      netip.AddrPort
	Size       uint64 // of the ring that comes with it
	files      []int  // that go with it; the sender keeps its own
	taken      func() // called once they are sent
}

var errMessage = errors.New("no request of the pipe's protocol")

// parseRequest reads a packet. It accepts nothing that it does not know.
func parseRequest(b []byte) (r request, err error) {
	if len(b) != messageSize {
		return r, fmt.Errorf("%w: %d bytes, want %d", errMessage, len(b), messageSize)
	}
	word := binary.NativeEndian.Uint32
	r = request{
		Op: op(word(b)), ID: word(b[4:]), Arg: word(b[8:]), Engines: engineSet(word(b[12:])),
		Size: binary.NativeEndian.Uint64(b[16:]),
	}
	if r.Op < opHello || r.Op > opLast {
		return r, fmt.Errorf("%w: operation %d", errMessage, r.Op)
	}
	for _, v := range b[24:] {
		if v != 0 {
			return r, fmt.Errorf("%w: bytes that are not used are not 0", errMessage)
		}
	}
	return r, nil
}

// encode writes a reply's packet.
func (r reply) encode() []byte {
	b := make([]byte, messageSize)
	put := binary.NativeEndian.PutUint32
	put(b, r.Errno)
	put(b[4:], r.ID)
	put(b[8:], uint32(r.Engine))
	put(b[12:], r.Generation)
	putAddr(b[16:32], r.Peer)
	binary.NativeEndian.PutUint16(b[32:], r.Peer.Port())
	binary.NativeEndian.PutUint16(b[34:], r.Local.Port())
	binary.NativeEndian.PutUint64(b[40:], r.Size)
	putAddr(b[48:64], r.Local)
	return b
}

func putAddr(b []byte, name netip.AddrPort) {
	if name.IsValid() {
		a := name.Addr().As16()
		copy(b, a[:])
	}
}
