package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// While a connection is paused, the two ends have no means by which bytes of a process's choice
// get to the other one: the program neither copies nor updates the pages, and the doorbells'
// filter drops what is sent. Only two facts pass, one bit each: that an end sends no more, and
// that it has closed its doorbell.

// restrict lets a doorbell receive single bytes only, and none during a pause. No process can
// change that: the filter is locked, and the program refuses all socket options.
func (k *Program) restrict(bell int) (cookie uint64, err error) {
	if cookie, err = unix.GetsockoptUint64(bell, unix.SOL_SOCKET, unix.SO_COOKIE); err != nil {
		return 0, fmt.Errorf("read a doorbell's cookie: %w", err)
	}
	for _, o := range [][2]int{
		{unix.SO_SNDBUF, 0}, // the least: few doorbells are unread
		{unix.SO_ATTACH_BPF, k.objs.SconPipeBell.FD()},
		{unix.SO_LOCK_FILTER, 1},
	} {
		if err := unix.SetsockoptInt(bell, unix.SOL_SOCKET, o[0], o[1]); err != nil {
			return 0, fmt.Errorf("restrict a doorbell: %w", err)
		}
	}
	return cookie, nil
}

// pausedBit is PAUSED of pipe_copy.bpf.c.
const pausedBit = 0x80

// state is the newest ring as the program has it: generation and class.
func (m *Memory) state() uint32 {
	if m.pool != nil && m.newest == 0 {
		return classPool
	}
	return m.newest<<8 | classOf(m.rings[m.newest].size)
}

// setNewest tells the program to which ring it may send, and whether it may.
func (m *Memory) setNewest() error {
	state := m.state()
	if m.paused {
		state |= pausedBit
	}
	if err := m.k.objs.Newest.Put(m.slot, state); err != nil {
		return fmt.Errorf("set the newest ring: %w", err)
	}
	return nil
}

func (m *Memory) Pause() error  { return m.setPaused(true) }
func (m *Memory) Resume() error { return m.setPaused(false) }

// setPaused pauses both ends: their doorbells, and the program for their slots. Runs in progress
// may still copy; Quiesce waits for them.
func (m *Memory) setPaused(paused bool) (err error) {
	for _, end := range []*Memory{m, m.peer} {
		end.paused = paused
		if paused {
			err = errors.Join(err, m.k.objs.Silent.Put(end.bell, uint32(1)))
		} else {
			err = errors.Join(err, end.unsilence())
		}
		err = errors.Join(err, end.setNewest())
	}
	m.k.stops.Add(1)
	if err != nil {
		return fmt.Errorf("pause or resume a connection: %w", err)
	}
	if !paused { // what the doorbells have missed
		m.Wake()
		m.peer.Wake()
	}
	return nil
}

// unsilence removes the doorbell from those that are paused.
func (m *Memory) unsilence() error {
	if err := m.k.objs.Silent.Delete(m.bell); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}
