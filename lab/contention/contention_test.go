package contention

import (
	"errors"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/scon-project/scon/internal/host/netns"
)

func open(t *testing.T, cgroup string) *Meter {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test loads BPF programs: run it as root (sudo make test)")
	}
	m, err := Open(cgroup)
	if errors.Is(err, ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// RTNL is found in a PID namespace, too, where a process has another PID than the kernel
// counts by.
func TestInPIDNamespace(t *testing.T) {
	open(t, "") // or skip
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("unshare", "--pid", "--fork", "--mount-proc", program, "-test.run=^TestWaitsForRTNL$").CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestWaitsForRTNL(t *testing.T) {
	m := open(t, "")
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if err := netns.Scratch(provoke); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	c, err := m.Read()
	if err != nil {
		t.Fatal(err)
	}
	if c.RTNL.Waits == 0 || c.RTNL.Waited == 0 || c.RTNL.Longest > c.RTNL.Waited {
		t.Errorf("four threads made devices at once: %+v", c.RTNL)
	}
	if err := m.Reset(); err != nil {
		t.Fatal(err)
	}
	again, err := m.Read()
	if err != nil {
		t.Fatal(err)
	}
	if again.RTNL.Waits >= c.RTNL.Waits && c.RTNL.Waits > 100 {
		t.Errorf("%d waits for RTNL after Reset, %d before", again.RTNL.Waits, c.RTNL.Waits)
	}
}

// Each Open finds the same lock as RTNL.
func TestSameLockAgain(t *testing.T) {
	first, second := open(t, ""), open(t, "")
	if first.rtnl != second.rtnl {
		t.Errorf("RTNL lies at %#x, then at %#x", first.rtnl, second.rtnl)
	}
}

// A group without tasks has no waits.
func TestOnlyTheGroupCounts(t *testing.T) {
	const root = "/sys/fs/cgroup/unified"
	dir, err := os.MkdirTemp(root, "scon-t")
	if errors.Is(err, os.ErrNotExist) {
		dir, err = os.MkdirTemp("/sys/fs/cgroup", "scon-t")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(dir)
	m := open(t, dir)
	if err := netns.Scratch(provoke); err != nil {
		t.Fatal(err)
	}
	c, err := m.Read()
	if err != nil {
		t.Fatal(err)
	}
	if c != (Counted{}) {
		t.Errorf("the group has no tasks, but waits: %+v", c)
	}
}
