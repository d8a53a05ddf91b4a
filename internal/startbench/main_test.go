package startbench_test

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/scon-project/scon/internal/figures/helper"
)

// TestMain lets the test's program be scon-bench, by that name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "scon-bench" {
		os.Exit(helper.Main(os.Args[1:]))
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
