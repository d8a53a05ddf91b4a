package datapath

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
)

// Grace counts RCU grace periods: when one is over, the programs that ran when it began have
// ended. A processor of a virtual machine can stand still in a program for as long as its host
// likes, so that no time is long enough. Any goroutine may call Next and Over.
type Grace struct {
	array, page *ebpf.Map // an array of maps, and what is in it
	begun, over atomic.Uint64
	busy        atomic.Bool
	running     sync.WaitGroup
}

// NewGrace returns a Grace that has counted none.
func NewGrace() (*Grace, error) {
	inner := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	page, err := ebpf.NewMap(inner)
	if err != nil {
		return nil, fmt.Errorf("making a map to wait for programs: %w", err)
	}
	array, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: inner})
	if err != nil {
		page.Close()
		return nil, fmt.Errorf("making an array of maps to wait for programs: %w", err)
	}
	return &Grace{array: array, page: page}, nil
}

// Next returns the number of the first grace period that has not begun yet.
func (g *Grace) Next() uint64 { return g.begun.Load() + 1 }

// Over returns the number of the last one that is over. It begins the next one, unless one is
// under way.
func (g *Grace) Over() uint64 {
	if !g.busy.Swap(true) {
		number := g.begun.Add(1)
		g.running.Go(func() {
			if g.wait() == nil { // or the next one counts
				g.over.Store(number)
			}
			g.busy.Store(false)
		})
	}
	return g.over.Load()
}

// wait waits for a grace period, as the kernel does when an array of maps changes: its user
// may rely on no program using what was in it.
func (g *Grace) wait() error { return g.array.Put(uint32(0), g.page) }

// Close waits for the grace period that is under way. Over must not be called any more.
func (g *Grace) Close() error {
	if g == nil {
		return nil
	}
	g.running.Wait()
	return errors.Join(g.array.Close(), g.page.Close())
}
