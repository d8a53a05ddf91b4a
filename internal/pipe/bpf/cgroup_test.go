package bpf

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// The cgroups of killed brokers and of their children are removed.
func TestStaleCgroups(t *testing.T) {
	t.Parallel()
	const dead = 1<<31 - 1 // above every PID
	dir := t.TempDir()
	alive := filepath.Join(dir, fmt.Sprintf("scon-pipe-%d", os.Getpid()))
	stale := filepath.Join(dir, fmt.Sprintf("scon-pipe-%d", dead))
	other := filepath.Join(dir, "scon-pipe-x")
	for _, d := range []string{alive, filepath.Join(stale, filepath.Base(stale)), other} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	removeStale(dir)
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 || left[0].Name() != filepath.Base(alive) || left[1].Name() != filepath.Base(other) {
		t.Errorf("%v, %v", left, err)
	}
}
