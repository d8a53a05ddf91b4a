package main

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/scon-project/scon/internal/state"
)

// Of several ups one works at a time, also where each is followed by a down, which removes the
// state directory that the others wait for.
func TestTurnIsOnes(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	var working atomic.Int32
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 200 {
				end := turn(dir, state.Make)
				if _, err := os.Stat(dir); err != nil || working.Add(1) != 1 {
					t.Errorf("%d work at a time: %v", working.Load(), err)
					end()
					return
				}
				working.Add(-1)
				os.Remove(dir)
				end()
			}
		})
	}
	group.Wait()
}
