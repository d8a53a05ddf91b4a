package pipe_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

// program is libsconpipe's test program, built with sanitizers.
var program string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "scon-pipe-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "pipetest")
	sanitize := "address,undefined"
	if s := os.Getenv("SCON_SANITIZE"); s != "" {
		sanitize = s
	}
	build := exec.Command("make", "-j2", "-C", "../../libsconpipe", "tests", "OUT="+dir, "SANITIZE="+sanitize)
	build.Env = append(os.Environ(), "CFLAGS=-O1 -g")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build libsconpipe's tests: %v\n%s", err, out)
		return 1
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
