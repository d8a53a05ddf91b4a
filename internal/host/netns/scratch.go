package netns

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Scratch calls fn on a thread in a new network namespace without a name, and
// returns its error. The namespace ends with the call, unless fn has opened
// it: whatever else fn does there leaves nothing behind.
//
// The thread returns to its namespace and does not end: if it is the first
// thread of the process, Go would keep it asleep for good, and it would hold
// the namespace.
func Scratch(fn func() error) error {
	return visit("a scratch namespace", func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a scratch namespace: %w", err)
		}
		return nil
	}, fn)
}
