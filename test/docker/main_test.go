package docker

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
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
	var missing []string
	for program, pkg := range packages {
		if _, err := exec.LookPath(program); err != nil && !slices.Contains(missing, pkg) {
			missing = append(missing, pkg)
		}
	}
	if missing != nil {
		slices.Sort(missing)
		return fmt.Errorf("these tests need the Debian packages %q", missing)
	}
	return nil
}
