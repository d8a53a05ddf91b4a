// Package upgrade tests that one build of scon replaces another under traffic: no packet
// is lost or reordered, and the programs of both are never active at the same time.
package upgrade

import (
	"fmt"
	"os"
	"testing"

	"github.com/scon-project/scon/test/bed/scontest"
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "scon-upgrade-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	for _, r := range []*release{v1, v2, v3} {
		if err := r.build(dir); err != nil {
			fmt.Fprintf(os.Stderr, "building %s: %v\n", r.name, err)
			return 1
		}
	}
	return scontest.Main(m, nil)
}
