package express_test

import (
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/scon-project/scon/internal/state"
	"github.com/scon-project/scon/test/bed/scontest"
)

// Pins whose devices are all gone are left to the daemon that holds them, as
// long as it lives.
func TestPinsOfLiving(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	maps := b.Pins("[a-z]*s")
	if !state.Flocked(filepath.Dir(maps[0])) {
		t.Errorf("no process holds %s", filepath.Dir(maps[0]))
	}
	if err := b.Daemon.Cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	proceed := func() { _ = b.Daemon.Cmd.Process.Signal(syscall.SIGCONT) }
	t.Cleanup(proceed)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	other := scontest.New(t, scontest.Layout{})
	own := other.Holder
	t.Cleanup(func() { other.Holder = own })
	other.Holder = b.Holder // the same bpffs
	other.Up()
	now := b.Pins("*")
	for _, path := range maps {
		if !slices.Contains(now, path) {
			t.Errorf("%s is gone", filepath.Base(path))
		}
	}
	proceed()
	other.Daemon.Down()
	b.Daemon.Down()
}
