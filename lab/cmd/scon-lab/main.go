// Scon-lab measures: it carries the commands of scon that need a laboratory.
// "scon VERB" runs it with the same command line.
//
// One file per verb; main.go is the frame they stand in.
package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/pin"
)

// Set by the Makefile, as those of scon.
var release, commit string

// tool is the program with everything it touches.
type tool struct {
	stdout, stderr io.Writer
	pinHost        func() *pin.Host // the machine of "scon pin advise"
}

func newTool(stdout, stderr io.Writer) *tool {
	return &tool{stdout: stdout, stderr: stderr, pinHost: func() *pin.Host { return pin.ThisHost(nil) }}
}

// run executes a command line and returns the exit status.
func (t *tool) run(args []string) int { return cli.Run(t.newRootCommand(), args) }

func (t *tool) newRootCommand() *cobra.Command {
	// No command here asks the daemon; scon takes --socket before any verb.
	root := cli.NewRoot("The commands of scon that measure", new(string), t.stdout, t.stderr)
	cli.AddVersionFlag(root, fmt.Sprintf("scon-lab %s (commit %s, %s, %s)",
		cmp.Or(release, "unreleased"), cmp.Or(commit, "unknown"), runtime.Version(), runtime.GOARCH))
	pin := &cobra.Command{Use: "pin", Short: "Recommend a placement of network work on CPUs"}
	pin.AddCommand(t.newPinAdviseCommand())
	pipe := &cobra.Command{Use: "pipe", Short: "Measure the pipe"}
	pipe.AddCommand(newPipeBenchCommand(), newPipeBrokerCommand())
	startup := &cobra.Command{Use: "startup", Short: "Measure and tune the start of containers"}
	startup.AddCommand(newStartupBenchCommand(), newStartupTuneCommand())
	root.AddCommand(newBenchCommand(), newLabCommand(), newLatencyCommand(), newProfileCommand(), pin, pipe, startup)
	return root
}
