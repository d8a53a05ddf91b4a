package startup

import (
	"log/slog"
	"os/exec"
	"testing"

	"github.com/scon-project/scon/test/bed/nstest"
)

// The iterator and /proc both report a process in its namespace, and none in a namespace
// that only one of its threads is in; that namespace is not deserted, either.
func TestCensus(t *testing.T) {
	for name, c := range map[string]*census{"iterator": newCensus(slog.Default()), "proc": new(census)} {
		t.Run(name, func(t *testing.T) {
			defer c.close()
			ns := nstest.New(t)
			number := inode(t, ns)
			find := func() (pid int) {
				pid, err := c.user(number, now())
				if err != nil {
					t.Fatal(err)
				}
				return pid
			}
			wantDeserted := func(want bool) {
				t.Helper()
				if got, err := c.isDeserted(number); got != want || err != nil {
					t.Errorf("deserted: %v, want %v; %v", got, want, err)
				}
			}
			wantDeserted(true)
			nstest.Do(t, ns, func() {
				if pid := find(); pid != 0 {
					t.Errorf("process %d is in an empty namespace", pid)
				}
				wantDeserted(false)
			})
			process := exec.Command("sleep", "infinity")
			nstest.Do(t, ns, func() {
				if err := process.Start(); err != nil {
					t.Fatal(err)
				}
			})
			// The iterator numbers processes as the machine does, whose numbers a container's /proc does not have.
			if pid := find(); pid == 0 || pid != process.Process.Pid && nstest.HasMachinePIDs(t) {
				t.Errorf("found process %d, want %d", pid, process.Process.Pid)
			}
			_ = process.Process.Kill()
			_ = process.Wait()
			if pid := find(); pid != 0 {
				t.Errorf("process %d is in a namespace whose process has ended", pid)
			}
			wantDeserted(true)
		})
	}
}
