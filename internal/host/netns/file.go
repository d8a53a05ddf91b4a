package netns

import (
	"fmt"
	"os"
)

// New creates a namespace without a name. It lives as long as the file is open
// or another reference exists.
func New() (ns *os.File, err error) {
	err = Scratch(func() (err error) {
		ns, err = os.Open(Path(""))
		return err
	})
	return ns, err
}

// FdPath is the path of an open file, for this process.
func FdPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }
