package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/scon-project/scon/test/bed/clitest"
)

// TestMain lets the test binary act as scon, with services that have no kernel
// side.
func TestMain(m *testing.M) {
	clitest.Main(m, map[string]func(){
		"scon": func() {
			t := newTool(os.Stdout, os.Stderr)
			t.config = filepath.Join(os.Getenv("WORK"), "usual.yaml")
			t.units = fakeUnits()
			t.pinHost = fakePinHost
			os.Exit(t.run(os.Args[1:]))
		},
	})
}

// TestScripts runs real command lines. Each script has its own state directory
// $STATE and two network namespaces, $NS and $OTHER.
func TestScripts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("need root to make network namespaces: run 'sudo make test'")
	}
	clitest.Run(t)
}
