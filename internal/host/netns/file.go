package netns

import (
	"fmt"
	"os"
)

// New creates a namespace without a name. It lives as long as the file is open
// or another reference exists.
func New() (ns *os.File, err error) {
	err = Scratch(func() (err error) {
		ns, err = openOwn()
		return err
	})
	return ns, err
}

// Reopen opens a namespace by a file that does not refer to the mount by which
// it was opened: where /run is shared, Linux 6.12 cannot remove a mount that
// is a copy of one that Replace has removed.
func Reopen(ns *os.File) (inner *os.File, err error) {
	err = Do(FdPath(ns), func() (err error) {
		inner, err = openOwn()
		return err
	})
	return inner, err
}

// openOwn opens the namespace of the calling thread.
func openOwn() (*os.File, error) { return os.Open(Path("")) }

// FdPath is the path of an open file, for this process.
func FdPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }
