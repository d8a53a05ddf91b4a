package pipe

import (
	"strings"

	"github.com/scon-project/scon/internal/pipe/engine"
)

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

// rings that a direction of it takes.
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

// ringSize is the size next to what is wanted that a ring can have.
func ringSize(wanted uint64) uint64 {
	size := uint64(engine.SmallestRing)
	for size < wanted && size < engine.LargestRing {
		size *= 4
	}
	return size
}
