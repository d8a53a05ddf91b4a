package nstest

import (
	"os"
	"path/filepath"
)

// AsSCON makes this test's program what programs.Find finds for the name scon,
// until done is called.
func AsSCON() (done func()) {
	dir, err := os.MkdirTemp("", "scon-bin-")
	if err != nil {
		panic(err)
	}
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, filepath.Join(dir, "scon"))
	}
	if err == nil {
		err = os.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	}
	if err != nil {
		panic(err)
	}
	return func() { os.RemoveAll(dir) }
}
