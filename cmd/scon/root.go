package main

import (
	"cmp"
	"io"
	"slices"

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
	cli.AddVersionFlag(root, thisVersion().String())
	root.Long = `Forward known connections of containers past bridge, second IP layer and Netfilter.

The kernel decides about a connection's first packets, the regular way. SCON
observes the decision and forwards the packets that follow by it, the express
way, until a rule, a route or a device changes.`
	root.Example = `  scon up                 start the daemon
  scon status             packets by either way, and why some go regular
  scon explain web        why connections of the container web do, or do not, go express
  scon top                the same live
  scon down               stop the daemon, and remove all that it has made`
	root.AddCommand(
		t.newUpCommand(),
		t.newDownCommand(),
		t.newReloadCommand(),
		t.newConfigCommand(),
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
	groupCommands(root)
	return root
}

// groups are the commands as the help lists them: what a stranger needs comes first.
var groups = []struct {
	title string
	names []string
}{
	{"Start and stop", []string{"up", "down", "reload", "pause", "resume", "flush"}},
	{"See what happens", []string{"status", "top", "web", "flows", "explain"}},
	{"Find out what is wrong", []string{"doctor", "config", "report"}},
	{"Measure and tune", []string{"bench", "profile", "latency", "pin", "lab"}},
	{"The other services", []string{"startup", "pipe", "run"}},
	{"Further commands", []string{"daemon", "version"}},
}

func groupCommands(root *cobra.Command) {
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for _, c := range root.Commands() {
			if slices.Contains(g.names, c.Name()) {
				c.GroupID = g.title
			}
		}
	}
	last := groups[len(groups)-1].title
	root.SetHelpCommandGroupID(last)
	root.SetCompletionCommandGroupID(last)
}

// client returns a client of the daemon at --socket.
func (t *tool) client() *api.Client { return api.Dial(t.socketOf(state.Express)) }

// socketOf returns --socket, or the default socket of a service.
func (t *tool) socketOf(s state.Service) string {
	return cmp.Or(t.socket, s.Socket(state.DefaultDir))
}
