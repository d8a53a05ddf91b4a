package pipe

import "strings"

// Engine is what copies a connection's bytes.
type Engine uint32

const (
	// Sealed has one memory per direction that the sender writes and the
	// receiver can only read. Both ends have to ask for it: a sender may alter
	// bytes that are under way.
	Sealed Engine = iota + 1
	// BPF copies in the kernel, from the sender's memory into a ring that only
	// the receiver maps.
	BPF
	// Copier copies in the broker, by a processor or a device that copies: from
	// a ring that only the sender maps to one that only the receiver does.
	Copier
	// Unix is a UNIX socket, where others would be slower.
	Unix
	lastEngine = Unix
)

var engineNames = [...]string{Sealed: "sealed", BPF: "bpf", Copier: "copier", Unix: "unix"}

func (e Engine) String() string {
	if e == 0 || e > lastEngine {
		return "none"
	}
	return engineNames[e]
}

// rings that a way of it takes.
func (e Engine) rings() int64 {
	switch e {
	case Copier:
		return 2
	case Unix:
		return 0
	}
	return 1
}

// engineSet has bit 1<<e for each Engine e.
type engineSet uint32

func (s engineSet) has(e Engine) bool { return s&(1<<e) != 0 }

func (s engineSet) String() string { return strings.Join(s.names(), " ") }

func (s engineSet) names() []string {
	names := []string{}
	for e := Sealed; e <= lastEngine; e++ {
		if s.has(e) {
			names = append(names, e.String())
		}
	}
	return names
}

// Sizes of rings in bytes, all powers of four times the smallest.
const (
	smallestRing = 64 << 10
	largestRing  = 4 << 20
)

// ringSize is the size next to what is wanted that a ring can have.
func ringSize(wanted uint64) uint64 {
	size := uint64(smallestRing)
	for size < wanted && size < largestRing {
		size *= 4
	}
	return size
}

// pageSize of the page of counters that each end has beside its rings.
const pageSize = 4096

// memory is what an engine holds for one end of a connection. The broker calls
// it with its lock held.
type memory interface {
	// files are what the end gets when it is made: its own page and its ring.
	files() ([]int, uint64)
	// mapped hears that the end has mapped what it writes to.
	mapped(generation uint32) error
	// ring is what the end reads from, in a later generation than files gave,
	// or in the first one where that depends on the peer.
	ring(generation uint32) ([]int, uint64, error)
	// given hears that the end has got what ring returned.
	given(generation uint32)
	// grow makes the ring that this end sends to larger.
	grow(size uint64) (files []int, generation uint32, err error)
	// size of the ring that this end sends to.
	size() uint64
	// sent is how many bytes the end says to have sent.
	sent() uint64
	close()
}
