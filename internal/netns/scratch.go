package netns

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Scratch calls fn on a thread in a new network namespace without a name, and
// returns its error. Thread and namespace end with the call: whatever fn tries
// there leaves nothing behind.
func Scratch(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends here
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("make a scratch namespace: %w", err)
			return
		}
		done <- fn()
	}()
	return <-done
}
