package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/scon-project/scon/internal/pin"
	"github.com/scon-project/scon/test/bed/clitest"
)

// TestMain lets the test's program be scon-lab, whose "scon pin advise" changes
// nothing but what it has made.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"scon-lab": func() {
			t := newTool(os.Stdout, os.Stderr)
			t.pinHost = func() *pin.Host {
				h := pin.ThisHost(nil)
				h.State = filepath.Join(os.Getenv("WORK"), "kept")
				return h
			}
			os.Exit(t.run(os.Args[1:]))
		},
	})
}

// TestScripts runs real command lines.
func TestScripts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("need root to make network namespaces: run 'sudo make test'")
	}
	results, err := filepath.Abs("../../results")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"status": clitest.ExitStatus,
		},
		Setup: func(env *testscript.Env) error {
			env.Setenv("RESULTS", results)
			return clitest.Setup(env)
		},
	})
}
