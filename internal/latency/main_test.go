package latency

import (
	"fmt"
	"os"
	"slices"
	"testing"
)

// TestMain lets the test's program be the generator.
func TestMain(m *testing.M) {
	if slices.Equal(os.Args[1:], generatorArgs) {
		Generate(os.Stdin, os.Stdout)
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests make network namespaces: run them as root (sudo make test)")
		os.Exit(1)
	}
	os.Exit(m.Run())
}
