// Package rights tests that what SCON has in the kernel and in its process is
// out of others' reach, and that its words give away nothing of containers.
package rights

import (
	"os"
	"testing"

	"github.com/scon-project/scon/internal/lab/scontest"
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(intruderEnv); spec != "" {
		intrude(spec)
		return
	}
	os.Exit(scontest.Main(m, nil))
}
