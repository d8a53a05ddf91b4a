package kernels

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

var full = flag.Bool("full", false, "run all tests that depend on the kernel, on every kernel")

// root is the root of the repository.
const root = "../.."

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if dir, err = os.MkdirTemp("", "scon-kernels-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		return m.Run()
	}())
}
