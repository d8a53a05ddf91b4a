package startup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/nstest"
)

// fill takes all room of the state directory, and returns what gives it back.
func (b *bed) fill() (empty func()) {
	b.t.Helper()
	dir := filepath.Join(b.dir, "full")
	if err := os.Mkdir(dir, 0o700); err != nil {
		b.t.Fatal(err)
	}
	for n, failed := 0, 0; failed < 100; n++ {
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(n)), make([]byte, 1), 0o600); err != nil {
			failed++
		}
	}
	return func() {
		if err := os.RemoveAll(dir); err != nil {
			b.t.Fatal(err)
		}
	}
}

// An agent starts where the disk has become full, and keeps what it has. An ADD is refused and leaves
// nothing, with the agent and without; a DEL succeeds.
func TestFullDisk(t *testing.T) {
	b := newBed(t)
	if err := unix.Mount("tmpfs", b.dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(b.dir, unix.MNT_DETACH) })
	b.start()
	pod, other := nstest.New(t), nstest.New(t)
	b.want(b.cni("ADD", "c", netns.Path(pod), b.conf()))
	empty := b.fill()
	refused := func() {
		t.Helper()
		if a := b.cni("ADD", "d", netns.Path(other), b.conf()); a.code != 1 || !strings.Contains(a.out, "no space left on device") {
			t.Errorf("ADD: %s", a.out)
		}
		b.want(b.cni("CHECK", "c", netns.Path(pod), b.conf()))
		if devices := b.devices(); len(devices) != 1 || len(b.records()) != 1 {
			t.Errorf("left: %v %v", devices, b.records())
		}
		b.ping(pod)
	}
	refused()
	b.kill()
	refused()
	b.start()
	refused()
	empty()
	b.want(b.cni("ADD", "d", netns.Path(other), b.conf()))
	b.ping(other)
	empty = b.fill()
	for id, ns := range map[string]string{"c": pod, "d": other} {
		b.want(b.cni("DEL", id, netns.Path(ns), b.conf()))
	}
	empty()
	b.wantWhole(b.conf())
}
