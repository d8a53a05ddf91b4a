package latency

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// onOneCPU keeps the test on one CPU until unpin is called.
func onOneCPU(t *testing.T) (unpin func()) {
	t.Helper()
	runtime.LockOSThread()
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	if err := setCPUs(allCPUs(t)[:1]); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.SchedSetaffinity(0, &before); err != nil {
			t.Error(err)
		}
		runtime.UnlockOSThread()
	}
}
