package pipe

import (
	"slices"
	"strings"

	"github.com/scon-project/scon/internal/pipe/engine"
)

// Engine copies a connection's bytes, as a PD Stack of the paper PipeDevice does.
type Engine uint32

const (
	// Sealed has one memory per direction, which the sender writes and the receiver
	// maps read-only. Both ends must request it, since a sender can alter bytes that
	// it has sent.
	Sealed Engine = iota + 1
	// BPF copies in the kernel, from the sender's memory into a ring that only
	// the receiver maps.
	BPF
	// Copier copies in the broker, by a processor or a copy device, from a ring that
	// only the sender maps to one that only the receiver maps.
	Copier
	// Unix is a UNIX socket, for distant processors, where rings are slower.
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

// rings returns the number of rings per direction.
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

// ParseEngine returns the engine with a name, as String returns it; false: there is none.
func ParseEngine(name string) (Engine, bool) {
	e := slices.Index(engineNames[:], name)
	return Engine(e), e > 0
}

// ringSize returns the smallest ring size that is at least wanted, or the largest; bytes.
func ringSize(wanted uint64) uint64 {
	size := uint64(engine.SmallestRing)
	for size < wanted && size < engine.LargestRing {
		size *= 4
	}
	return size
}
