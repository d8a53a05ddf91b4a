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
