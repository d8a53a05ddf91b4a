package main

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/scon-project/scon/internal/lab"
)

// TestLab runs real command lines on the machine's one lab of that name.
func TestLab(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("need root to make network namespaces: run 'sudo make test'")
	}
	if _, err := lab.Open(""); err == nil {
		t.Skip("needs a machine without a lab: run 'scon lab down' first")
	}
	t.Cleanup(func() {
		if err := lab.Down(""); err != nil {
			t.Error(err)
		}
	})
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/lab",
		RequireExplicitExec: true,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"status": exitStatus,
		},
	})
}
