//go:build cgo

package sconpipe

// #include <sconpipe.h>
import "C"

import (
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// socket is a socket of the library in the set.
type socket struct {
	sid    C.int
	closed chan struct{}

	// Calls hold mu for reading, Close for writing: the number of a closed socket may be
	// reused at once.
	mu   sync.RWMutex
	over bool

	in, out side

	armed  sync.Mutex
	events C.uint32_t // armed in the set
}

// side is one direction: receiving or sending.
type side struct {
	events   C.uint32_t
	call     sync.Mutex    // held during a call
	ready    chan struct{} // holds a value once the set has reported an event
	deadline deadline
}

func newSocket(sid C.int) *socket {
	return &socket{
		sid: sid, closed: make(chan struct{}),
		in:  side{events: C.EPOLLIN, ready: make(chan struct{}, 1), deadline: newDeadline()},
		out: side{events: C.EPOLLOUT, ready: make(chan struct{}, 1), deadline: newDeadline()},
	}
}

// try calls a non-blocking function of the library until it does not return EAGAIN. The
// function returns the library's result and errno.
func (s *socket) try(d *side, call func() (int, error)) (int, error) {
	for {
		if d.deadline.over() {
			return 0, os.ErrDeadlineExceeded
		}
		s.mu.RLock()
		if s.over {
			s.mu.RUnlock()
			return 0, net.ErrClosed
		}
		n, err := call()
		if n < 0 && isAgain(err) {
			select { // discard an event from before this call
			case <-d.ready:
			default:
			}
			err = s.arm(d.events)
			s.mu.RUnlock()
			if err != nil {
				return 0, err
			}
			if err := s.wait(d); err != nil {
				return 0, err
			}
			continue
		}
		s.mu.RUnlock()
		if n < 0 {
			return 0, err
		}
		return n, nil
	}
}

// arm adds events of the socket to the set, which reports them once.
func (s *socket) arm(events C.uint32_t) error {
	s.armed.Lock()
	defer s.armed.Unlock()
	s.events |= events
	return s.change(C.EPOLL_CTL_MOD, s.events|C.EPOLLONESHOT)
}

func (s *socket) change(op C.int, events C.uint32_t) error {
	set, err := theSet()
	if err != nil {
		return err
	}
	e := event(events, s.sid)
	if n, err := C.pd_epoll_ctl(set, op, s.sid, &e); n < 0 {
		return fmt.Errorf("wait for a socket: %w", err)
	}
	return nil
}

// wake wakes the call that waits for an event.
func (s *socket) wake() {
	s.armed.Lock()
	s.events = 0
	s.armed.Unlock()
	for _, d := range []*side{&s.in, &s.out} {
		select {
		case d.ready <- struct{}{}:
		default:
		}
	}
}

func (s *socket) wait(d *side) error {
	select {
	case <-d.ready:
		return nil
	case <-d.deadline.passed():
		return os.ErrDeadlineExceeded
	case <-s.closed:
		return net.ErrClosed
	}
}

// poll adds the socket to the set.
func (s *socket) poll() error {
	sockets.Store(s.sid, s)
	if err := s.change(C.EPOLL_CTL_ADD, C.EPOLLONESHOT); err != nil {
		sockets.Delete(s.sid)
		return err
	}
	return nil
}

func (s *socket) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return net.ErrClosed
	}
	s.over = true
	close(s.closed)
	sockets.Delete(s.sid)
	if n, err := C.pd_close(s.sid); n < 0 {
		return err
	}
	return nil
}

// deadline is a time that can be changed while a call waits for it.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	ch    chan struct{} // closed when it has passed
}

func newDeadline() deadline { return deadline{ch: make(chan struct{})} }

// set changes the deadline; the zero time means none.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.ch // the timer's function is closing it
	}
	d.timer = nil
	over := isClosed(d.ch)
	left := time.Until(t)
	switch {
	case t.IsZero() || left > 0:
		if over {
			d.ch = make(chan struct{})
		}
		if !t.IsZero() {
			ch := d.ch
			d.timer = time.AfterFunc(left, func() { close(ch) })
		}
	case !over:
		close(d.ch)
	}
}

func (d *deadline) passed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ch
}

func (d *deadline) over() bool { return isClosed(d.passed()) }

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
