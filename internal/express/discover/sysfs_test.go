package discover

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A container may put anything where its sysfs should be, including a FIFO
// without a writer: it is not believed, and opening it does not block.
func TestForgedSysfs(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "class/net/eth0/queues/rx-0")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"../../ifindex", "../../iflink", "rps_cpus"} {
		if err := unix.Mkfifo(filepath.Join(dir, name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := (place{index: 2, peer: 3}).in(root); !errors.Is(err, errNoSysfs) {
		t.Errorf("found a device: %v", err)
	}
	queue, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer queue.Close()
	if _, err := readIn(queue, "rps_cpus"); !errors.Is(err, errNoSysfs) {
		t.Errorf("read a file that is none of sysfs: %v", err)
	}
}

// What a container mounts over a file of its sysfs is not read: a FIFO without a writer
// would block.
func TestForgedQueue(t *testing.T) {
	tree := t.TempDir()
	if err := unix.Mount("sysfs", tree, "sysfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(tree, unix.MNT_DETACH) })
	lo, err := (place{name: "lo", index: 1, peer: 1}).in(tree)
	if err != nil {
		t.Fatal(err)
	}
	defer lo.Close()
	if steers, err := lo.Steers(); steers || err != nil {
		t.Fatalf("lo steers: %v, %v", steers, err)
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(fifo, filepath.Join(tree, "class/net/lo/queues/rx-0/rps_cpus"), "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := lo.Steers(); !errors.Is(err, unix.EXDEV) {
		t.Errorf("read what is mounted over a queue's file: %v", err)
	}
}
