// Package rights tests that unprivileged processes cannot reach SCON's objects in
// the kernel or its memory, and that its output reveals nothing of containers.
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
