package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/host/programs"
)

// addLabCommands adds the commands that scon-lab carries out, each below its
// parent.
func (t *tool) addLabCommands(root *cobra.Command) {
	for path, short := range cli.LabCommands {
		parent, name := root, path
		if group, verb, grouped := strings.Cut(path, " "); grouped {
			parent, _, _ = root.Find([]string{group})
			name = verb
		}
		parent.AddCommand(t.newLabCommand(name, short))
	}
}

// newLabCommand returns a command that passes the whole command line to scon-lab,
// requests for help and completions included.
func (t *tool) newLabCommand(name, short string) *cobra.Command {
	cmd := &cobra.Command{
		Use:                name,
		Short:              short,
		DisableFlagParsing: true,
		Args:               cobra.ArbitraryArgs,
		RunE:               func(*cobra.Command, []string) error { return t.execLab() },
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			cobra.CompErrorln(t.execLab().Error())
			return nil, cobra.ShellCompDirectiveError
		},
	}
	cmd.SetHelpFunc(func(*cobra.Command, []string) { fmt.Fprintln(t.stderr, "scon:", t.execLab()) })
	return cmd
}

// execLab replaces this process by scon-lab with the same arguments: the command
// keeps the terminal, receives the signals and sets the exit status. execLab
// returns only on error.
func (t *tool) execLab() error {
	path, err := programs.Find(cli.LabProgram)
	if err != nil {
		return err
	}
	err = unix.Exec(path, append([]string{path}, t.args...), os.Environ())
	return fmt.Errorf("execute %s: %w", path, err)
}
