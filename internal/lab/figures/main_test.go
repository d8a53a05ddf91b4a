package figures_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/scon-project/scon/internal/lab/bench/peer"
	"github.com/scon-project/scon/internal/lab/figures/helper"
)

// TestMain lets the test's program be scon-bench, by that name, and a traffic
// peer.
func TestMain(m *testing.M) {
	switch {
	case filepath.Base(os.Args[0]) == "scon-bench":
		os.Exit(helper.Main(os.Args[1:]))
	case slices.Equal(os.Args[1:], []string{"bench", "peer"}):
		peer.Main(os.Stdin, os.Stdout)
	}
	goleak.VerifyTestMain(m)
}

// withHelper makes the test's program scon-bench.
func withHelper(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(self, filepath.Join(dir, "scon-bench")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}
