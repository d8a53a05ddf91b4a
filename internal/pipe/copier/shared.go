package copier

//go:generate go run ../genlayout copier page_layout.go ../../../libsconpipe/src/page.h

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/engine"
)

// shared is memory that one process and the broker map. Its size is sealed, so that the
// process cannot make the broker fault by truncating it.
type shared struct {
	size   uint64 // bytes
	kept   int    // file for the helper to map; -1: none is needed
	file   int    // -1 once the process has mapped it; guarded by the broker's lock
	memory []byte // used by the worker only, once it has adopted the connection
	region uint32 // its number in the worker's stack
}

func (c *Copier) newShared(what string, size uint64) (m *shared, err error) {
	m = &shared{size: size, file: -1, kept: -1}
	if m.file, err = engine.MemoryFile(what, size); err != nil {
		return nil, err
	}
	if m.memory, err = unix.Mmap(m.file, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		m.given()
		return nil, fmt.Errorf("map a %s of %d bytes: %w", what, size, err)
	}
	return m, nil
}

// newRing creates a ring, which a helper may have to map.
func (c *Copier) newRing(size uint64) (*shared, error) {
	m, err := c.newShared("ring", size)
	if err != nil {
		return nil, err
	}
	if err := c.keep(m, m.file); err != nil {
		m.given()
		m.unmap()
		return nil, err
	}
	return m, nil
}

// keep duplicates the file for the helper, if there is one, which maps it later.
func (c *Copier) keep(m *shared, file int) (err error) {
	if c.helper == "" {
		return nil
	}
	if m.kept, err = unix.FcntlInt(uintptr(file), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return fmt.Errorf("duplicate a file for the helper: %w", err)
	}
	return nil
}

// given closes the file, after the process has received it.
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
	if m.kept >= 0 {
		unix.Close(m.kept)
		m.kept = -1
	}
}

func (m *shared) page() *page { return (*page)(unsafe.Pointer(&m.memory[0])) }
