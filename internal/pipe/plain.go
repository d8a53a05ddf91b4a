package pipe

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// plain is one end of the engine unix, whose doorbell is the way itself: a UNIX
// socket. Its memory is the kernel's, counted with who sends.
type plain struct {
	e *end
}

func openPlain(c *connection) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make a pair of sockets: %w", err)
	}
	for i, e := range c.ends {
		e.doorbell, e.memory = pair[i], &plain{e}
	}
	return nil
}

func (m *plain) files() ([]int, uint64) { return nil, m.size() }

func (m *plain) mapped(uint32) error { return unix.EINVAL }

func (m *plain) ring(uint32) ([]int, uint64, error) { return nil, 0, unix.EINVAL }

func (m *plain) given(uint32) {}

func (m *plain) grow(uint64) ([]int, uint32, error) { return nil, 0, unix.EINVAL }

// size of the socket's buffer.
func (m *plain) size() uint64 {
	size, err := unix.GetsockoptInt(m.e.doorbell, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		return 0
	}
	return uint64(size)
}

// sent is known when the end has closed.
func (m *plain) sent() uint64 { return m.e.told }

func (m *plain) close() {}
