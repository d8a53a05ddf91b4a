// Package engine is the interface between the pipe's broker and its engines. An engine creates
// the memory through which the two ends of a connection exchange bytes.
package engine

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/quota"
)

// PageSize is the size in bytes of the page of counters that each end has in addition to its
// rings.
const PageSize = 4096

// Bounds of a ring's size in bytes. Sizes are SmallestRing times a power of four.
const (
	SmallestRing = 64 << 10
	LargestRing  = 4 << 20
)

// End is the part of one end of a connection that the engine and the broker share.
type End struct {
	Netns    uint64        // inode of the process's network namespace
	Owner    quota.Account // pays for the broker's work
	Limit    float64       // processors that the owner may use; 0: no limit
	Doorbell int           // this end's doorbell socket, -1: none; with most engines, its other end is the peer's
	Memory   Memory
	// CloseFD closes a socket to which the process can send files, which may block: it does
	// not wait for that.
	CloseFD func(fd int)
}

// Memory is an engine's state for one end of a connection. The broker calls its methods with
// the broker's lock held. Returned files remain the engine's.
type Memory interface {
	// Files returns the files that the end gets first, its own page and its ring or rings,
	// and the ring's size in bytes.
	Files() (fds []int, size uint64)
	// Mapped records that the end has mapped the memory of a generation that it writes
	// to, with the engine bpf the ring that it reads from. EINVAL: not a generation that it
	// can map.
	Mapped(generation uint32) error
	// Ring returns the ring of a generation that the end reads from, if Files did not
	// return it, and its size in bytes. EAGAIN: it is not ready; EALREADY: the end has it.
	Ring(generation uint32) (fds []int, size uint64, err error)
	// Given closes the files of a generation, after the end has received them.
	Given(generation uint32)
	// Grow creates a larger ring for this end to send to, with the engine bpf one to
	// receive from; size in bytes. EBUSY: the previous one is not in use yet.
	Grow(size uint64) (fds []int, generation uint32, err error)
	// Size returns the size in bytes of the ring that Grow replaces.
	Size() uint64
	// Sent returns the bytes sent by the end, as far as the engine knows; a process may
	// misreport them.
	Sent() uint64
	// Held is how many files the broker has open for it, without the end's doorbell.
	Held() int
	// Wake signals this end's doorbell.
	Wake()
	// Stop ends all copying at once, for both ends. It does not wait for a process.
	Stop()
	// Close releases the memory.
	Close()
}

// Lender is the Memory of an end that can send from buffers of its process.
type Lender interface {
	// Lend registers a buffer and returns its number, which is not 0.
	Lend(fd int) (number uint32, err error)
	// TakeBack unregisters a buffer.
	TakeBack(number uint32) error
}

// Carrier is an engine that copies within the broker.
type Carrier interface {
	// Open creates the memory of both ends. The engine calls lost, without the broker's
	// lock, when it has reset the connection itself.
	Open(ends [2]*End, lost func()) (Carriage, error)
	// Device returns the name of the device that copies; "": CPUs copy.
	Device() string
	// Close stops the engine, after all connections.
	Close() error
}

// Pauser is the Memory of an end whose connection can be paused: nothing gets from one end to
// the other by the engine, but that an end sends no more.
type Pauser interface {
	// Pause pauses both directions. Copies in progress may still end.
	Pause() error
	// Resume ends the pause, and wakes both ends.
	Resume() error
}

// Carriage is a connection of a Carrier. The broker calls its methods with its lock held.
type Carriage interface {
	// Pause stops all copying in both directions until Resume. still is closed once no copy
	// is in progress.
	Pause() (still <-chan struct{})
	// Resume ends the pause.
	Resume()
	// Leave closes an end, 0 or 1. Its peer still receives the bytes that it has sent.
	Leave(end int)
	// HangUp resets the connection at once.
	HangUp()
	// Forget releases the connection.
	Forget()
}

// Signal writes a byte to a doorbell, and reports whether there was room. A full doorbell is
// signaled already. The call does not block, even if the process has made the file blocking.
func Signal(fd int) bool {
	return unix.Sendto(fd, []byte{0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil) == nil
}

// ReadDoorbell reads the bytes of a doorbell, which is nonblocking, as read does. EPERM: a process
// has sent a file, which the read would close, and that may block.
func ReadDoorbell(fd int) (n int, err error) {
	var bytes [256]byte
	n = len(bytes)
	if !RefusesFiles() {
		var flags int
		// The kernel closes copies only of what it peeks at. A read of as many bytes gets the
		// same packets.
		if n, _, flags, _, err = unix.Recvmsg(fd, bytes[:], nil, unix.MSG_PEEK|unix.MSG_DONTWAIT); err != nil || n == 0 {
			return 0, err
		}
		if flags&unix.MSG_CTRUNC != 0 {
			return 0, unix.EPERM
		}
	}
	return unix.Read(fd, bytes[:n])
}

// RefusesFiles reports whether the kernel can refuse files in a doorbell: Linux 6.16.
var RefusesFiles = sync.OnceValue(func() bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0) == nil
})

// Doorbells creates a pair of connected UNIX sockets by which two ends wake each other, of a
// type such as SOCK_STREAM. They pass no files where the kernel can refuse that, from Linux 6.16
// on (SO_PASSRIGHTS, net/unix/af_unix.c).
func Doorbells(kind int) (pair [2]int, err error) {
	pair, err = unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return [2]int{-1, -1}, fmt.Errorf("create doorbells: %w", err)
	}
	for _, fd := range pair {
		err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0)
		if errors.Is(err, unix.ENOPROTOOPT) {
			err = nil
		}
		// The kernel gives it a name, so that no process can: the other end could read that.
		if err = errors.Join(err, unix.Bind(fd, &unix.SockaddrUnix{})); err != nil {
			unix.Close(pair[0])
			unix.Close(pair[1])
			return [2]int{-1, -1}, fmt.Errorf("forbid files and names in a doorbell: %w", err)
		}
	}
	return pair, nil
}

// MemoryFile creates a memfd of size bytes. The size is sealed: access to a mapping of a file
// that was truncated would raise SIGBUS.
func MemoryFile(name string, size uint64) (int, error) {
	fd, err := unix.MemfdCreate("scon-"+name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("create a %s: %w", name, err)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("create a %s of %d bytes: %w", name, size, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("seal the size of a %s: %w", name, err)
	}
	return fd, nil
}
