package services

import (
	"fmt"
	"os"
	"testing"

	"github.com/scon-project/scon/test/bed/scontest"
)

// built is the directory of programs that tests build.
var built string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if socket := os.Getenv(hostileSocket); socket != "" {
		return runHostile(socket)
	}
	var err error
	if built, err = os.MkdirTemp("", "scon-services-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(built)
	return scontest.Main(m, nil)
}
