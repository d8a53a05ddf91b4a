// Package clitest is what the scripts of command lines have in common.
package clitest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/scon-project/scon/internal/host/netns"
)

// Main runs a package's tests; their program is the commands, too, that scripts run.
func Main(m *testing.M, commands map[string]func()) { testscript.Main(m, commands) }

// Run runs the scripts in testdata.
func Run(t *testing.T) {
	t.Helper()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"status":   ExitStatus,
			"terminal": Terminal,
		},
		Setup: Setup,
	})
}

// Setup gives a script a state directory $STATE and two network namespaces, $NS
// and $OTHER, of its own. $PROGRAMS is the folder of the programs that are tested.
func Setup(e *testscript.Env) error {
	// A socket's path has at most 107 bytes.
	state, err := os.MkdirTemp("", "scon-cli-")
	if err != nil {
		return err
	}
	namespaces := map[string]string{"NS": filepath.Base(state) + "NS", "OTHER": filepath.Base(state) + "OTHER"}
	end, err := removeAtEnd(state, namespaces["NS"], namespaces["OTHER"])
	if err != nil {
		return errors.Join(err, os.RemoveAll(state))
	}
	e.Defer(func() {
		if err := end(); err != nil {
			e.T().Fatal(err)
		}
	})
	e.Setenv("GORACE", "atexit_sleep_ms=0") // else each command takes a second
	e.Setenv("PROGRAMS", filepath.SplitList(e.Getenv("PATH"))[0])
	e.Setenv("STATE", state)
	e.Setenv("SOCKET", filepath.Join(state, "scon.sock"))
	for variable, name := range namespaces {
		if err := netns.Create(name); err != nil {
			return err
		}
		e.Setenv(variable, name)
	}
	return nil
}

// ExitStatus is the command `status N COMMAND...`: the command ends with N. Its output is
// for stdout and stderr, as with exec.
func ExitStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N COMMAND...")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if strconv.Itoa(got) != args[0] {
		ts.Fatalf("exit status %d, want %s", got, args[0])
	}
}
