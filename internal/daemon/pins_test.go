package daemon_test

import (
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// Pins whose devices are all gone are left to the daemon that holds them, as
// long as it lives.
func TestPinsOfLiving(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{})
	maps := b.pins("[a-z]*s")
	if err := b.daemon.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	proceed := func() { _ = b.daemon.cmd.Process.Signal(syscall.SIGCONT) }
	t.Cleanup(proceed)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	other := newBed(t, layout{})
	own := other.holder
	t.Cleanup(func() { other.holder = own })
	other.holder = b.holder // the same bpffs
	other.up()
	now := b.pins("*")
	for _, path := range maps {
		if !slices.Contains(now, path) {
			t.Errorf("%s is gone", filepath.Base(path))
		}
	}
	proceed()
	other.daemon.down()
	b.daemon.down()
}
