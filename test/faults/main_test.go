package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/scon-project/scon/test/bed/scontest"
)

// scon is the path of the command under test.
var scon string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "scon-faults-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	scon = filepath.Join(dir, "scon")
	build := exec.Command("go", "build", "-C", "../..", "-o", scon, "./cmd/scon")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building scon: %v: %s", err, out)
		return 1
	}
	return scontest.Main(m, nil)
}

// newBed builds a lab without a daemon.
func newBed(t *testing.T, l scontest.Layout) *scontest.Bed {
	t.Helper()
	l.SCON = scon
	return scontest.New(t, l)
}

// newExpress builds a lab with a daemon.
func newExpress(t *testing.T, l scontest.Layout) *scontest.Bed {
	t.Helper()
	b := newBed(t, l)
	b.Up()
	return b
}

// long returns the size of a test: the first for `make test`, the second for
// `make test-long`.
func long[T any](short, long T) T {
	if os.Getenv("SCON_LONG") == "1" {
		return long
	}
	return short
}
