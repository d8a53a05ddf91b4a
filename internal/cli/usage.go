package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/scon-project/scon/internal/suggest"
)

// usageError is an invalid command line: exit status 2.
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

// Usagef returns an error for an invalid command line, which ends the program
// with ExitUsage.
func Usagef(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{cmd.CommandPath(), fmt.Sprintf(format, args...)}
}

// strict makes every command refuse unknown arguments with a usageError, and a
// command that only groups others print its help.
func strict(cmd *cobra.Command) {
	accepts := cmd.Args
	if !cmd.Runnable() {
		accepts = KnownVerb
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		err := accepts(cmd, args)
		if err == nil || errors.As(err, new(*usageError)) {
			return err
		}
		return Usagef(cmd, "%v", err)
	}
	for _, c := range cmd.Commands() {
		strict(c)
	}
}

// NoArgs refuses arguments.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usagef(cmd, "takes no argument, got %q", args[0])
	}
	return nil
}

// KnownVerb refuses the arguments of a command that only groups others: cobra
// found no command of that name.
func KnownVerb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var verbs []string
	for _, c := range cmd.Commands() {
		verbs = append(verbs, c.Name())
	}
	return Usagef(cmd, "unknown command %q%s", args[0], suggest.Hint(args[0], verbs))
}

// wanted describes the values of a flag by its type.
var wanted = map[string]string{"int": "a whole number", "bool": "true or false"}

// flagError turns an error of the flag parser into a usageError that names the
// nearest flag, or the values that the flag takes.
func flagError(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	var wrong *pflag.InvalidValueError
	if errors.As(err, &wrong) {
		if want := wanted[wrong.GetFlag().Value.Type()]; want != "" {
			return Usagef(cmd, "--%s is %q: want %s", wrong.GetFlag().Name, wrong.GetValue(), want)
		}
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || unknown.GetSpecifiedShortnames() != "" {
		return Usagef(cmd, "%v", err)
	}
	var flags []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { flags = append(flags, "--"+f.Name) })
	name := "--" + unknown.GetSpecifiedName()
	return Usagef(cmd, "unknown flag %s%s", name, suggest.Hint(name, flags))
}
