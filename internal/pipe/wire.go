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

// Version of the protocol, which the first request of a session names. The broker refuses others.
const Version = wireVersion

const messageSize = 64

// request is a client's message.
type request struct {
	Op      uint32
	ID      uint32
	Arg     uint32
	Engines engineSet
	Size    uint64
	file    int // passed with it, or -1; closed after the reply
}

// reply answers a request.
type reply struct {
	Errno      uint32 // 0 for success
	ID         uint32
	Engine     Engine
	Generation uint32
	Peer       netip.AddrPort
	Local      netip.AddrPort
	Size       uint64       // of the ring that is passed with it, bytes
	files      []int        // passed with it; still open afterwards
	taken      func() error // called after the files are sent, if not nil; an error ends the session
}

var errMessage = errors.New("not a request of the pipe's protocol")

// parseRequest decodes a packet. Unused bytes must be 0.
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
			return r, fmt.Errorf("%w: unused bytes are not 0", errMessage)
		}
	}
	return request{Op: w.Op, ID: w.ID, Arg: w.Arg, Engines: engineSet(w.Engines), Size: w.Size, file: -1}, nil
}

// encode returns a reply's packet.
func (r reply) encode() []byte {
	w := wireReply{
		Error: r.Errno, ID: r.ID, Engine: uint32(r.Engine), Generation: r.Generation, Size: r.Size,
		Peer: r.Peer.Addr().As16(), PeerPort: r.Peer.Port(), Local: r.Local.Addr().As16(), LocalPort: r.Local.Port(),
	}
	return bytesOf(&w)
}

// bytesOf returns a packet's memory.
func bytesOf[packet wireRequest | wireReply](w *packet) []byte {
	return (*[messageSize]byte)(unsafe.Pointer(w))[:]
}

// Both messages have the size of a packet.
var (
	_ = [1]struct{}{}[messageSize-unsafe.Sizeof(wireRequest{})]
	_ = [1]struct{}{}[messageSize-unsafe.Sizeof(wireReply{})]
)
