// Package rights tests that unprivileged processes have no access to SCON's kernel
// objects and memory, and that its output reveals no data of containers.
package rights

import (
	"os"
	"testing"

	"github.com/scon-project/scon/test/bed/scontest"
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(intruderEnv); spec != "" {
		intrude(spec)
		return
	}
	os.Exit(scontest.Main(m, nil))
}
