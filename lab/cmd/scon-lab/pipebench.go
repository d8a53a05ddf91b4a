package main

import (
	"context"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/pipebench"
)

func newPipeBenchCommand() *cobra.Command {
	var show benchOptions
	var o pipebench.Options
	cmd := &cobra.Command{
		Use:   "bench",
		Short: cli.LabCommands["pipe bench"],
		Long: `Measure the bulk data exchange of two containers by the pipe's engines, TCP, a UNIX
socket and sockmap, in a private lab with a private broker.

Each round measures every mode once: ` + strings.Join(pipebench.ModeNames(false), ", ") + `.
--apps measures applications instead: a ring all-reduce of eight ranks, a chain of
services, and unmodified iperf3. The command removes everything when it ends. Ctrl-C
ends it and keeps the samples taken so far.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if show.rounds < 1 {
				return cli.Usagef(cmd, "--rounds %d: want at least 1", show.rounds)
			}
			if err := pipebench.CheckModes(show.modes, o.Apps); err != nil {
				return cli.Usagef(cmd, "--modes: %v", err)
			}
			o.Modes, o.Rounds = show.modes, show.rounds
			o.Progress, o.Notes = cli.NewProgress(os.Stderr), cmd.ErrOrStderr()
			return show.show(cmd, func(ctx context.Context) (*bench.Result, error) {
				return pipebench.Run(ctx, o)
			})
		},
	}
	show.addCommonFlags(cmd, pipebench.Rounds)
	flags := cmd.Flags()
	flags.BoolVar(&o.Apps, "apps", false, "measure applications: all-reduce, a chain of services and iperf3")
	flags.StringSliceVar(&show.modes, "modes", nil, "measure only these `modes`")
	return cmd
}

// newPipeBrokerCommand is the broker that bench starts.
func newPipeBrokerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "broker SOCKET HELPER",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			return pipebench.ServeBroker(args, os.Stdin, os.Stdout, os.Stderr)
		},
	}
}
