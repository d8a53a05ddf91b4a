package main

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/scon-project/scon/lab/latency"
	"github.com/scon-project/scon/lab/topology"
	"github.com/scon-project/scon/test/bed/clitest"
	"github.com/scon-project/scon/test/bed/lab"
)

// TestLab runs real command lines on the machine's one lab of that name.
func TestLab(t *testing.T) { runInLab(t, "testdata/lab") }

// TestTopology runs real command lines on topologies.
func TestTopology(t *testing.T) { runInLab(t, "testdata/topology") }

// runInLab runs a folder's scripts, which are about everything that "scon lab up"
// has built.
func runInLab(t *testing.T, dir string) {
	if os.Geteuid() != 0 {
		t.Fatal("need root to make network namespaces: run 'sudo make test'")
	}
	if _, err := lab.Open(""); err == nil {
		t.Skip("needs a machine without a lab: run 'scon lab down' first")
	}
	if topologies, err := topology.List(""); err != nil || len(topologies) > 0 {
		t.Skipf("needs a machine without topologies: run 'scon lab down' first (%v)", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(lab.Down(""), downTopologies()); err != nil {
			t.Error(err)
		}
	})
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"status": clitest.ExitStatus,
		},
		Condition: func(condition string) (bool, error) {
			if condition != "tcx" {
				return false, fmt.Errorf("unknown condition %q", condition)
			}
			return latency.Supported() == nil, nil
		},
	})
}
