package pipe

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/cores"
)

// calibration compares a ring with a UNIX socket between two processors by the copies that
// the engines make: one side writes pieces, the other reads them.
type calibration struct {
	rounds   int
	pieces   int           // per round
	piece    int           // bytes; divides calibrationRing
	patience time.Duration // limit for all rounds
}

const calibrationRing = 1 << 20

var errBusy = errors.New("other work keeps the processors busy")

// run measures between processors a and b. It returns the shortest round of each medium.
// errBusy: other work prevented it.
func (o calibration) run(a, b int) (ring, socket time.Duration, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, 0, fmt.Errorf("make a pair of sockets: %w", err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	memory, err := unix.Mmap(-1, 0, calibrationRing, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return 0, 0, fmt.Errorf("map a ring: %w", err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	r := &transfer{calibration: o, pair: pair, memory: memory, stop: time.Now().Add(o.patience)}
	reader := make(chan error, 1)
	go func() { reader <- r.run(b, r.read) }()
	err = r.run(a, r.write)
	if err != nil {
		_ = unix.Shutdown(pair[0], unix.SHUT_RDWR)
	}
	if err = errors.Join(err, <-reader); err != nil {
		return 0, 0, fmt.Errorf("compare a ring with a socket: %w", err)
	}
	return r.ring, r.socket, nil
}

// transfer is one calibration in progress.
type transfer struct {
	calibration
	pair         [2]int
	memory       []byte
	stop         time.Time
	gone         atomic.Bool // a side has failed
	_            [128]byte
	head         atomic.Int64 // pieces written
	_            [128]byte
	tail         atomic.Int64 // pieces read
	_            [128]byte
	ring, socket time.Duration // shortest rounds, set by read
}

func (r *transfer) run(cpu int, side func([]byte) error) (err error) {
	defer func() { r.gone.Store(r.gone.Load() || err != nil) }()
	unpin, err := cores.Pin(cpu)
	if err != nil {
		return err
	}
	defer unpin()
	return side(make([]byte, r.piece))
}

// await spins until n is at least want.
func (r *transfer) await(n *atomic.Int64, want int64) error {
	for spins := 1; n.Load() < want; spins++ {
		if spins%(1<<12) == 0 && (r.gone.Load() || time.Now().After(r.stop)) {
			return errBusy
		}
	}
	return nil
}

func (r *transfer) slot(piece int64) []byte {
	at := int(piece) * r.piece % calibrationRing
	return r.memory[at : at+r.piece]
}

// write is the writing side. Each round fills the ring first, then the socket.
func (r *transfer) write(buf []byte) error {
	for round := range int64(r.rounds) {
		for i := range int64(r.pieces) {
			n := round*int64(r.pieces) + i
			if err := r.await(&r.tail, n+1-int64(calibrationRing/r.piece)); err != nil {
				return err
			}
			copy(r.slot(n), buf)
			r.head.Store(n + 1)
		}
		if err := r.await(&r.tail, (round+1)*int64(r.pieces)); err != nil {
			return err
		}
		for left := r.pieces * r.piece; left > 0; {
			n, err := unix.Write(r.pair[0], buf[:min(left, len(buf))])
			if err != nil && !errors.Is(err, unix.EINTR) {
				return err
			}
			left -= max(n, 0)
		}
	}
	return nil
}

// read is the reading side, which measures.
func (r *transfer) read(buf []byte) error {
	for round := range int64(r.rounds) {
		if err := r.await(&r.head, round*int64(r.pieces)+1); err != nil {
			return err
		}
		begun := time.Now()
		for i := range int64(r.pieces) {
			n := round*int64(r.pieces) + i
			if err := r.await(&r.head, n+1); err != nil {
				return err
			}
			copy(buf, r.slot(n))
			r.tail.Store(n + 1)
		}
		middle := time.Now()
		for left := r.pieces * r.piece; left > 0; {
			n, err := unix.Read(r.pair[1], buf)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return err
			}
			if n == 0 {
				return errBusy
			}
			left -= max(n, 0)
		}
		ring, socket := middle.Sub(begun), time.Since(middle)
		if round == 0 || ring < r.ring {
			r.ring = ring
		}
		if round == 0 || socket < r.socket {
			r.socket = socket
		}
	}
	return nil
}
