// Package cli is the command-line frame of scon and scon-lab: the root command,
// exit statuses, usage errors, flags, tables and progress.
package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/state"
)

// Exit statuses.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2 // unknown command or flag, wrong arguments
	// ExitSettings ends a service whose settings cannot be read: EX_CONFIG of sysexits(3).
	// Another start would end in the same way, so systemd does not try.
	ExitSettings = 78
)

// ErrReported ends a command whose error has been printed already.
var ErrReported = errors.New("")

// settingsError is about settings that cannot be read.
type settingsError struct{ error }

func (e *settingsError) Unwrap() error { return e.error }

// BadSettings returns an error that ends the program with ExitSettings.
func BadSettings(err error) error { return &settingsError{err} }

// NewRoot returns the root command "scon" with the flag --socket. Both programs
// use that name: a user runs the commands of scon-lab as "scon VERB".
func NewRoot(short string, socket *string, stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:           "scon",
		Short:         short,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.PersistentFlags().Var((*NonEmpty)(socket), "socket",
		"the service's unix socket, a `path` (default \""+state.Express.Socket(state.DefaultDir)+"\", or startup.sock, pipe.sock beside it)")
	root.SetFlagErrorFunc(flagError)
	return root
}

// Run executes a command line and returns the exit status. The root command has
// all its commands.
func Run(root *cobra.Command, args []string) int {
	root.InitDefaultCompletionCmd()
	strict(root)
	completing(root)
	root.SetArgs(args)
	err := root.Execute()
	switch {
	case err == nil:
		return ExitOK
	case errors.Is(err, ErrReported):
		return ExitFailed
	}
	fmt.Fprintf(root.ErrOrStderr(), "scon: %s\n", oneLine(err))
	switch {
	case errors.As(err, new(*usageError)):
		return ExitUsage
	case errors.As(err, new(*settingsError)):
		return ExitSettings
	default:
		return ExitFailed
	}
}

// oneLine formats an error, also a joined one, as one line.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}
