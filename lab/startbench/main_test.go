package startbench_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/scon-project/scon/lab/figures"
	"github.com/scon-project/scon/lab/figures/helper"
)

// TestMain lets the test binary run as the helper.
func TestMain(m *testing.M) {
	if args := os.Args[1:]; len(args) > len(figures.HelperArgs) && slices.Equal(args[:len(figures.HelperArgs)], figures.HelperArgs) {
		os.Exit(helper.Main(args[len(figures.HelperArgs):]))
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		if built != "" {
			os.RemoveAll(built)
		}
		os.Exit(status)
	}))
}

// withPrograms puts scon, scon-cni and scon-oci into $PATH.
func withPrograms(t *testing.T) {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// programs builds the programs once.
var programs = sync.OnceValues(func() (dir string, err error) {
	if built, err = os.MkdirTemp("", "scon-bin-"); err != nil {
		return "", err
	}
	for _, command := range [][]string{
		{"make", "-C", "../..", "bin/scon-cni", "bin/scon-oci"},
		{"cp", "../../bin/scon-cni", "../../bin/scon-oci", built},
		{"go", "build", "-C", "../..", "-o", built, "./cmd/scon"},
	} {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%v: %w: %s", command, err, out)
		}
	}
	return built, nil
})

// built is the folder of the programs, "" until they are built.
var built string
