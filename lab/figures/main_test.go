package figures_test

import (
	"os"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/scon-project/scon/lab/bench/peer"
	"github.com/scon-project/scon/lab/figures"
	"github.com/scon-project/scon/lab/figures/helper"
)

// TestMain runs the test's executable as the helper or a traffic peer.
func TestMain(m *testing.M) {
	args := os.Args[1:]
	switch {
	case len(args) == len(figures.HelperArgs)+1 && slices.Equal(args[:len(figures.HelperArgs)], figures.HelperArgs):
		os.Exit(helper.Main(args[len(figures.HelperArgs):]))
	case slices.Equal(args, []string{"bench", "peer"}):
		peer.Main(os.Stdin, os.Stdout)
	}
	goleak.VerifyTestMain(m)
}
