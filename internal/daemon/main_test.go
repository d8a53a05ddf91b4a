package daemon_test

import (
	"fmt"
	"os"
	"testing"
)

// The tests of this package are of the whole express way. Each has a lab of its
// own, a daemon in it, and sends real traffic:
//
//	 edge                 device (daemon)                        c1
//	+-----------+    +-------------------------+    +-----------------+
//	| 10.77.0.2 |====| 10.77.0.1    172.17.0.1 |====| 172.17.0.2      |
//	+-----------+    +-------------------------+    +-----------------+
//
// The daemon is this program anew, in device and with mounts of its own: it can
// be killed, and what it leaves behind is gone with the test.

func TestMain(m *testing.M) {
	if spec := os.Getenv(childEnv); spec != "" {
		os.Exit(child(spec))
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests make network namespaces: run them as root (sudo make test)")
		os.Exit(1)
	}
	os.Exit(m.Run())
}
