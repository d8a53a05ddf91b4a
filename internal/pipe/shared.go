package pipe

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// shared is memory of the engine copier that one application and the broker
// map. Its size is fixed: nobody can make the other one fault by cutting it.
type shared struct {
	size   uint64
	file   int    // -1 when the application has it; the broker's lock guards it
	memory []byte // the worker's, once it has the connection
	region uint32 // its number with the worker's stack
}

func newShared(what string, size uint64) (m *shared, err error) {
	m = &shared{size: size, file: -1}
	if m.file, err = sealedFile(what, size); err != nil {
		return nil, err
	}
	if m.memory, err = unix.Mmap(m.file, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		m.given()
		return nil, fmt.Errorf("map a %s of %d bytes: %w", what, size, err)
	}
	return m, nil
}

// given hears that the application has mapped it.
func (m *shared) given() {
	if m.file >= 0 {
		unix.Close(m.file)
		m.file = -1
	}
}

func (m *shared) unmap() {
	if m.memory != nil {
		_ = unix.Munmap(m.memory)
		m.memory = nil
	}
}

// side is what one end says; libsconpipe/src/pipe.h has the same.
type side struct {
	Head       uint64
	SwitchAt   uint64
	Generation uint32
	Fin        uint32
	_          [104]byte
	Tail       uint64
	_          [120]byte
	ReadWait   uint32
	WriteWait  uint32
	Deaf       uint32
	_          [116]byte
}

// page is what an application says, which is not believed, and what it is told
// of its peer; libsconpipe/src/pipe.h has the same.
type page struct {
	Own, Peer side
	Sent      uint64 // positions before it may be copied now, or are
	_         [120]byte
	Lent      uint64 // how many loans there were
	_         [120]byte
	Loans     [mostLoans]loanEntry
}

func (m *shared) page() *page { return (*page)(unsafe.Pointer(&m.memory[0])) }

// What applications write is read once, and what they read is written once: Go's
// atomics order all of it.
func load64(p *uint64) uint64     { return atomic.LoadUint64(p) }
func load32(p *uint32) uint32     { return atomic.LoadUint32(p) }
func store64(p *uint64, v uint64) { atomic.StoreUint64(p, v) }
func store32(p *uint32, v uint32) { atomic.StoreUint32(p, v) }
