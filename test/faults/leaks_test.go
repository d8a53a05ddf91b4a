package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// wantNothingLeft fails if the lab has programs, filters, pins or files of
// SCON.
func wantNothingLeft(b *scontest.Bed) {
	b.T.Helper()
	if b.BPFFSMounted() {
		b.T.Errorf("the bpffs is still mounted, with %v", b.Pins("*"))
	}
	if out := b.Sh(lab.Device, "bpftool net show"); strings.Contains(out, "scon") {
		b.T.Errorf("programs are left:\n%s", out)
	}
	files, err := filepath.Glob(b.Seen(filepath.Join(b.StateDir(), "scon*")))
	if err != nil || len(files) > 0 {
		b.T.Errorf("left in the state directory: %v, %v", files, err)
	}
}

// atLeast reports whether there are n Conentries or more.
func atLeast(b *scontest.Bed, n int) error {
	if got := b.Status().Totals.Entries; got < n {
		return fmt.Errorf("%d Conentries, want at least %d", got, n)
	}
	return nil
}

// files counts the daemon's file descriptors by kind.
func files(b *scontest.Bed) map[string]int {
	b.T.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", b.Daemon.Cmd.Process.Pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		b.T.Fatal(err)
	}
	kinds := make(map[string]int)
	for _, fd := range fds {
		name, err := os.Readlink(filepath.Join(dir, fd.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		kind, _, _ := strings.Cut(name, ":[")
		kinds[kind]++
	}
	return kinds
}

// wantHeld fails if the daemon has more of any kind of file descriptor than
// before. A client's socket may take a moment to close.
func wantHeld(b *scontest.Bed, count func(*scontest.Bed) map[string]int, before map[string]int) {
	b.T.Helper()
	scontest.Eventually(b.T, "the daemon holds no more than before", func() error {
		for kind, now := range count(b) {
			if now > before[kind] {
				return fmt.Errorf("%d of %s, before %d", now, kind, before[kind])
			}
		}
		return nil
	})
}

// waitOriginal waits until packets of the original direction go express,
// possibly with a new Conentry.
func waitOriginal(c *scontest.Connection) {
	c.B.T.Helper()
	var last uint64
	scontest.Eventually(c.B.T, "packets go express", func() error {
		f, err := c.Flow()
		if err != nil {
			return err
		}
		was := last
		last = f.ExpressPackets[0]
		if was == 0 || last <= was {
			return fmt.Errorf("%d express packets, before %d", last, was)
		}
		return nil
	})
}
