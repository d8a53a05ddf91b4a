package peer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/cores"
	"github.com/scon-project/scon/internal/host/netns"
)

// crowdSockets is the largest number of sockets at either end of a Crowd; the number of
// connections is at most its square.
const crowdSockets = 1024

// crowdMessage is the size of a Crowd's messages in bytes.
const crowdMessage = 64

// Crowd is many UDP connections between two namespaces. Both ends are in this process,
// and an exchange takes place in lockstep: request and response pass before the next
// exchange begins, so that a lost packet is an error. A connection is a pair of sockets,
// so that a million connections need two thousand.
type Crowd struct {
	drivers, servers []socket
	addresses        []*sockaddr // of the servers, as the drivers reach them
	connections      int
	random           *rand.Rand
	message          [crowdMessage]byte
}

// OpenCrowd opens the sockets for 1 to 1,048,576 connections to an address in the
// servers' namespace. The first exchange makes a connection. The same arguments give the
// same order.
func OpenCrowd(serverNetns, driverNetns string, to netip.Addr, connections int) (c *Crowd, err error) {
	if connections < 1 || connections > crowdSockets*crowdSockets {
		return nil, fmt.Errorf("%d connections: want 1 to %d", connections, crowdSockets*crowdSockets)
	}
	c = &Crowd{connections: connections, random: rand.New(rand.NewPCG(1, uint64(connections)))}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	servers := (connections + crowdSockets - 1) / crowdSockets
	err = netns.Do(serverNetns, func() error {
		for range servers {
			s, port, err := listen("udp", to)
			if err != nil {
				return err
			}
			c.servers = append(c.servers, s)
			c.addresses = append(c.addresses, rawAddress(netip.AddrPortFrom(to, port)))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = netns.Do(driverNetns, func() error {
		for range (connections + servers - 1) / servers {
			s, err := newSocket("udp", to)
			if err != nil {
				return err
			}
			c.drivers = append(c.drivers, s)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, s := range append(c.servers[:servers:servers], c.drivers...) {
		if err := s.setTimeout(answerTimeout); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Close closes the sockets.
func (c *Crowd) Close() {
	for _, s := range append(c.servers, c.drivers...) {
		s.close()
	}
	c.servers, c.drivers = nil, nil
}

// Connections returns their number.
func (c *Crowd) Connections() int { return c.connections }

// Port returns the first server's port.
func (c *Crowd) Port() uint16 {
	p := (*[2]byte)(unsafe.Pointer(&c.addresses[0].raw.Port))
	return uint16(p[0])<<8 | uint16(p[1])
}

// Each exchanges a message on each connection, one after the other.
func (c *Crowd) Each() error { return c.Some(0, c.connections) }

// Some is Each for the connections from one number to another, which is not one of them.
func (c *Crowd) Some(from, to int) error {
	for i := from; i < to; i++ {
		if err := c.exchange(i); err != nil {
			return err
		}
	}
	return nil
}

// Random exchanges messages on connections drawn at random, on one CPU, for a duration.
func (c *Crowd) Random(cpu int, d time.Duration) (Report, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	unpin, err := cores.Pin(cpu)
	if err != nil {
		return Report{}, err
	}
	defer unpin()
	times := newTimes()
	cpuTime, start := threadCPU(), time.Now()
	begun := start
	for begun.Sub(start) < d {
		if err := c.exchange(c.random.IntN(c.connections)); err != nil {
			return Report{}, err
		}
		now := time.Now()
		if err := times.RecordValue(int64(now.Sub(begun))); err != nil {
			return Report{}, err
		}
		begun = now
	}
	return reportOf(times, time.Since(start), threadCPU()-cpuTime), nil
}

// exchange sends a message on a connection and has it returned.
func (c *Crowd) exchange(i int) error {
	n := len(c.servers)
	driver, server := c.drivers[i/n], c.servers[i%n]
	from := sockaddr{length: unix.SizeofSockaddrInet6}
	err := driver.sendTo(c.message[:], c.addresses[i%n])
	if err == nil {
		err = server.receiveFrom(c.message[:], &from)
	}
	if err == nil {
		err = server.sendTo(c.message[:], &from)
	}
	if err == nil {
		err = driver.receiveFrom(c.message[:], &from)
	}
	if err != nil {
		return fmt.Errorf("connection %d of %d: %w", i, c.connections, err)
	}
	return nil
}

// sendTo sends a message to an address.
func (s socket) sendTo(message []byte, to *sockaddr) error {
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s), uintptr(unsafe.Pointer(&message[0])), uintptr(len(message)),
			unix.MSG_NOSIGNAL, uintptr(unsafe.Pointer(&to.raw)), uintptr(to.length))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return fmt.Errorf("send: %w", errno)
		}
	}
}

// receiveFrom receives a message, and the address that it is from. The error is errLost if
// none comes within the timeout.
func (s socket) receiveFrom(message []byte, from *sockaddr) error {
	var begun time.Time
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(s), uintptr(unsafe.Pointer(&message[0])), uintptr(len(message)),
			0, uintptr(unsafe.Pointer(&from.raw)), uintptr(unsafe.Pointer(&from.length)))
		switch errno {
		case 0:
			return nil
		case unix.EINTR: // by Go's scheduler, again and again: the socket's timeout begins anew
			if begun.IsZero() {
				begun = time.Now()
			}
			if time.Since(begun) > answerTimeout {
				return errLost
			}
		case unix.EAGAIN:
			return errLost
		default:
			return fmt.Errorf("receive: %w", errno)
		}
	}
}

// errLost means that a message did not arrive within answerTimeout.
var errLost = errors.New("a message was lost")
