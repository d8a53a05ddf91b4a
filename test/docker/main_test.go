package docker

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/scon-project/scon/test/bed/needs"
)

func TestMain(m *testing.M) {
	if os.Getenv(echoEnv) != "" { // this binary runs in a container
		fmt.Fprintln(os.Stderr, serveEcho())
		os.Exit(1)
	}
	if err := checkHost(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	if err := removeSCON(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = max(status, 1)
	}
	os.Exit(status)
}

// checkHost returns an error that names everything that this host lacks.
func checkHost() (err error) {
	if os.Geteuid() != 0 {
		return errors.New("these tests make namespaces: run them as root (sudo make test)")
	}
	if err := needs.Check(programs...); err != nil {
		return fmt.Errorf("these tests run programs of this machine: %w", err)
	}
	return nil
}
