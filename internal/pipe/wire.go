package pipe

import (
	"errors"
	"fmt"
	"net/netip"
	"unsafe"
)

// The protocol's layout is defined in libsconpipe/src/wire.h.
//
//go:generate go run ./genlayout pipe wire_layout.go ../../libsconpipe/src/wire.h

const messageSize = 64

// request is what a client asks.
type request struct {
	Op      uint32
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

var errMessage = errors.New("not a request of the pipe's protocol")

// parseRequest reads a packet. Bytes without a meaning have to be 0.
func parseRequest(b []byte) (r request, err error) {
	if len(b) != messageSize {
		return r, fmt.Errorf("%w: %d bytes, want %d", errMessage, len(b), messageSize)
	}
	var w wireRequest
	copy(bytesOf(&w), b)
	if w.Op < opHello || w.Op >= opEnd {
		return r, fmt.Errorf("%w: operation %d", errMessage, w.Op)
	}
	for _, v := range b[unsafe.Offsetof(w.Size)+unsafe.Sizeof(w.Size):] {
		if v != 0 {
			return r, fmt.Errorf("%w: bytes that are not used are not 0", errMessage)
		}
	}
	return request{Op: w.Op, ID: w.ID, Arg: w.Arg, Engines: engineSet(w.Engines), Size: w.Size, file: -1}, nil
}

// encode writes a reply's packet.
func (r reply) encode() []byte {
	w := wireReply{
		Error: r.Errno, ID: r.ID, Engine: uint32(r.Engine), Generation: r.Generation, Size: r.Size,
		Peer: r.Peer.Addr().As16(), PeerPort: r.Peer.Port(), Local: r.Local.Addr().As16(), LocalPort: r.Local.Port(),
	}
	return bytesOf(&w)
}

// bytesOf is a packet's memory.
func bytesOf[packet wireRequest | wireReply](w *packet) []byte {
	return (*[messageSize]byte)(unsafe.Pointer(w))[:]
}

// Both are a packet.
var (
	_ = [1]struct{}{}[messageSize-unsafe.Sizeof(wireRequest{})]
	_ = [1]struct{}{}[messageSize-unsafe.Sizeof(wireReply{})]
)
