// Package engine is what the pipe's broker and its engines agree on. An engine makes the
// memory by which the two ends of a connection exchange bytes.
package engine

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// PageSize is the size of the page of counters that each end has beside its rings, in
// bytes.
const PageSize = 4096

// Sizes of rings in bytes; each is four times the one before.
const (
	SmallestRing = 64 << 10
	LargestRing  = 4 << 20
)

// End is one end of a connection, as its engine and the broker share it.
type End struct {
	Netns    uint64 // inode of the process's network namespace
	Doorbell int    // this end's socket, whose other end is its peer's; -1: none
	Memory   Memory
}

// Memory is what an engine holds for one end of a connection. The broker calls it with
// its lock held.
type Memory interface {
	// Files are what the end gets when it is made: its own page and its ring or rings.
	Files() (fds []int, size uint64)
	// Mapped hears that the end has mapped what it writes to.
	Mapped(generation uint32) error
	// Ring is what the end reads from, in a later generation than Files gave, or in the
	// first one where that depends on the peer.
	Ring(generation uint32) (fds []int, size uint64, err error)
	// Given hears that the end has got what Ring returned.
	Given(generation uint32)
	// Grow makes the ring larger that this end sends to.
	Grow(size uint64) (fds []int, generation uint32, err error)
	// Size of the ring that this end sends to, in bytes.
	Size() uint64
	// Sent is how many bytes the end says to have sent.
	Sent() uint64
	// Wake signals this end's doorbell.
	Wake()
	// Stop ends copying at once, whatever the ends do.
	Stop()
	Close()
}

// Lender is the memory of an end that can send from buffers of its process.
type Lender interface {
	Lend(fd int) (number uint32, err error)
	TakeBack(number uint32) error
}

// Carrier is an engine that copies within the broker.
type Carrier interface {
	// Open makes the memory of both ends. It calls lost, without the broker's lock,
	// when it has ended the connection itself.
	Open(ends [2]*End, lost func()) (Carriage, error)
	// Device is the name of a device that copies; "": processors do.
	Device() string
	Close() error
}

// Carriage is a connection of a Carrier. The broker calls it with its lock held.
type Carriage interface {
	// Leave hears that an end has left: its peer still gets what it has sent.
	Leave(end int)
	// HangUp ends it at once.
	HangUp()
	// Forget gives back what it has.
	Forget()
}

// Signal writes a byte to a doorbell, and says whether it had room. The process that has
// the other end may have let it fill up: then it is signaled. A process can make the
// file block; this call does not.
func Signal(fd int) bool {
	return unix.Sendto(fd, []byte{0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil) == nil
}

// Doorbells makes the sockets by which two ends wake each other.
func Doorbells() (pair [2]int, err error) {
	pair, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return [2]int{-1, -1}, fmt.Errorf("make doorbells: %w", err)
	}
	return pair, nil
}

// MemoryFile makes memory of a fixed size: a file that shrinks kills a process that reads
// it.
func MemoryFile(name string, size uint64) (int, error) {
	fd, err := unix.MemfdCreate("scon-"+name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("make a %s: %w", name, err)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("make a %s of %d bytes: %w", name, size, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("fix the size of a %s: %w", name, err)
	}
	return fd, nil
}
