package latency

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/scon-project/scon/lab/figures"
	"github.com/scon-project/scon/lab/figures/helper"
	"github.com/scon-project/scon/test/bed/nstest"
	"github.com/scon-project/scon/test/bed/scontest"
)

// TestMain runs the test's executable as the generator, a daemon, or what draws.
func TestMain(m *testing.M) {
	if args := os.Args[1:]; len(args) == len(figures.HelperArgs)+1 && slices.Equal(args[:len(figures.HelperArgs)], figures.HelperArgs) {
		os.Exit(helper.Main(args[len(figures.HelperArgs):]))
	}
	if len(os.Args) > 1 && os.Args[1] == "daemon" {
		if err := scontest.RunDaemon(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if slices.Equal(os.Args[1:], generatorArgs) {
		Generate(os.Stdin, os.Stdout)
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests make network namespaces: run them as root (sudo make test)")
		os.Exit(1)
	}
	done := nstest.AsSCON()
	status := m.Run()
	done()
	os.Exit(status)
}
