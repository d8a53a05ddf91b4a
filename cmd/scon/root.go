package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/near"
	"github.com/scon-project/scon/internal/pin"
	"github.com/scon-project/scon/internal/state"
)

// Exit statuses.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2 // unknown command or flag, wrong arguments
)

// tool is the program with everything it touches.
type tool struct {
	stdout, stderr io.Writer
	args           []string // the command line, without the program's name
	socket         string   // --socket, "" where not given
	config         string   // read without --config, where there is such a file
	daemon         daemonSide
	pinHost        func() *pin.Host // the machine of "scon pin"
}

func newTool(stdout, stderr io.Writer) *tool {
	return &tool{stdout: stdout, stderr: stderr, config: config.DefaultPath, daemon: realDaemon, pinHost: thisPinHost}
}

func (t *tool) run(args []string) int {
	t.args = args
	root := t.newRootCommand()
	root.SetArgs(args)
	err := root.Execute()
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errAnswered):
		return exitFailed
	}
	fmt.Fprintf(t.stderr, "scon: %s\n", oneLine(err))
	if errors.As(err, new(*usageError)) {
		return exitUsage
	}
	return exitFailed
}

func (t *tool) newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "scon",
		Short:         "Take the packets of known connections past bridge, second IP layer and Netfilter",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(t.stdout)
	root.SetErr(t.stderr)
	root.PersistentFlags().Var((*nonEmpty)(&t.socket), "socket",
		"the daemon's unix socket, a `path` (default \""+state.Socket(state.DefaultDir)+"\")")
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(
		t.newUpCommand(),
		t.newDownCommand(),
		t.newDaemonCommand(),
		t.newStatusCommand(),
		t.newFlowsCommand(),
		t.newExplainCommand(),
		t.newFlushCommand(),
		t.newPauseCommand(),
		t.newResumeCommand(),
		t.newDoctorCommand(),
		t.newCNICommand(),
		newLabCommand(),
		newBenchCommand(),
		newProfileCommand(),
		newLatencyCommand(),
		t.newPinCommand(),
		t.newStartupCommand(),
		t.newPipeCommand(),
		t.newRunCommand(),
		t.newVersionCommand(),
	)
	root.InitDefaultCompletionCmd()
	strict(root)
	return root
}

// strict makes every command refuse arguments that it does not know with a
// usageError, and a command of verbs show its help.
func strict(cmd *cobra.Command) {
	accepts := cmd.Args
	if !cmd.Runnable() {
		accepts = knownVerb
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		err := accepts(cmd, args)
		if err == nil || errors.As(err, new(*usageError)) {
			return err
		}
		return usagef(cmd, "%v", err)
	}
	for _, c := range cmd.Commands() {
		strict(c)
	}
}

// client talks to the daemon of --socket.
func (t *tool) client() *api.Client {
	if t.socket != "" {
		return api.Dial(t.socket)
	}
	return api.Dial(state.Socket(state.DefaultDir))
}

// usageError is a command line that makes no sense: exit status 2.
type usageError struct {
	command string // "scon flows"
	problem string
}

func (e *usageError) Error() string {
	name := strings.TrimPrefix(strings.TrimPrefix(e.command, "scon"), " ")
	if name != "" {
		name += ": "
	}
	return fmt.Sprintf("%s%s; '%s --help' shows the usage", name, e.problem, e.command)
}

func usagef(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{cmd.CommandPath(), fmt.Sprintf(format, args...)}
}

// wanted are the values that flags take, by their types.
var wanted = map[string]string{"int": "a whole number", "bool": "true or false"}

// flagError is what a wrong flag ends with; it names the nearest one, or what
// its value may be.
func flagError(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	var wrong *pflag.InvalidValueError
	if errors.As(err, &wrong) {
		if want := wanted[wrong.GetFlag().Value.Type()]; want != "" {
			return usagef(cmd, "--%s is %q: want %s", wrong.GetFlag().Name, wrong.GetValue(), want)
		}
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || unknown.GetSpecifiedShortnames() != "" {
		return usagef(cmd, "%v", err)
	}
	var flags []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { flags = append(flags, "--"+f.Name) })
	name := "--" + unknown.GetSpecifiedName()
	return usagef(cmd, "unknown flag %s%s", name, near.Hint(name, flags))
}

// knownVerb refuses what is left when cobra found no command of that name.
func knownVerb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var verbs []string
	for _, c := range cmd.Commands() {
		verbs = append(verbs, c.Name())
	}
	return usagef(cmd, "unknown command %q%s", args[0], near.Hint(args[0], verbs))
}

// nonEmpty is a flag that refuses "": an unset variable of a script must not
// mean something else.
type nonEmpty string

func (n *nonEmpty) Set(s string) error {
	if s == "" {
		return errors.New("it is empty")
	}
	*n = nonEmpty(s)
	return nil
}

func (n *nonEmpty) String() string { return string(*n) }

func (n *nonEmpty) Type() string { return "string" }

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef(cmd, "takes no argument, got %q", args[0])
	}
	return nil
}

// oneLine is an error as one line, however many it was joined of.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}
