package main

import (
	"cmp"
	"io"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/pin"
	"github.com/scon-project/scon/internal/state"
)

// tool is the program with its environment.
type tool struct {
	stdout, stderr io.Writer
	args           []string // the command line, without the program's name
	socket         string   // --socket, "" where not given
	config         string   // the default of --config, optional
	units          []unit
	pinHost        func() *pin.Host // the machine of "scon pin"
}

func newTool(stdout, stderr io.Writer) *tool {
	return &tool{stdout: stdout, stderr: stderr, config: config.DefaultPath, units: units(), pinHost: thisPinHost}
}

func (t *tool) run(args []string) int {
	t.args = args
	return cli.Run(t.newRootCommand(), args)
}

func (t *tool) newRootCommand() *cobra.Command {
	root := cli.NewRoot("Forward known connections of containers past bridge, second IP layer and Netfilter",
		&t.socket, t.stdout, t.stderr)
	root.AddCommand(
		t.newUpCommand(),
		t.newDownCommand(),
		t.newDaemonCommand(),
		t.newStatusCommand(),
		t.newTopCommand(),
		t.newWebCommand(),
		t.newFlowsCommand(),
		t.newExplainCommand(),
		t.newFlushCommand(),
		t.newPauseCommand(),
		t.newResumeCommand(),
		t.newDoctorCommand(),
		t.newReportCommand(),
		t.newCNICommand(),
		t.newPinCommand(),
		t.newStartupCommand(),
		t.newPipeCommand(),
		t.newRunCommand(),
		t.newVersionCommand(),
	)
	t.addLabCommands(root)
	return root
}

// client returns a client of the daemon at --socket.
func (t *tool) client() *api.Client { return api.Dial(t.socketOf(state.Express)) }

// socketOf returns --socket, or the default socket of a service.
func (t *tool) socketOf(s state.Service) string {
	return cmp.Or(t.socket, s.Socket(state.DefaultDir))
}
