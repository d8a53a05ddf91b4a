package main

import (
	"context"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/lab/appbench"
	"github.com/scon-project/scon/lab/bench"
)

func newBenchAppCommand() *cobra.Command {
	var o benchOptions
	seconds := appbench.DefaultSeconds
	e := appbench.Experiment()
	cmd := &cobra.Command{
		Use:   "app",
		Short: "Measure " + e.Short,
		Long: `Measure what users of servers in a container see: nginx and mosquitto in a
container of a real Docker, and their clients outside. wrk keeps its connections,
makes one for each request, or asks for files of 1 MB; ab makes one for each
request of HTTP/1.0, and a publisher one for each MQTT message. Mode native is the
same container with --network host. The Docker engine is private to this command.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch _, err := e.Only(o.modes); {
			case o.rounds < 1:
				return cli.Usagef(cmd, "--rounds %d: want at least 1", o.rounds)
			case seconds < 1:
				return cli.Usagef(cmd, "--seconds %d: want at least 1", seconds)
			case err != nil:
				return cli.Usagef(cmd, "--modes: %v", err)
			}
			return o.show(cmd, func(ctx context.Context) (*bench.Result, error) {
				return appbench.Run(ctx, appbench.Options{Modes: o.modes, Rounds: o.rounds, Seconds: seconds,
					Progress: cli.NewProgress(os.Stderr)})
			})
		},
	}
	var modes []string
	for _, m := range e.Modes {
		modes = append(modes, m.Name)
	}
	o.addCommonFlags(cmd, e.Rounds)
	flags := cmd.Flags()
	flags.StringSliceVar(&o.modes, "modes", nil, "measure only these `modes` of "+strings.Join(modes, ", "))
	cli.CompleteWords(cmd, "modes", modes...)
	flags.IntVar(&seconds, "seconds", seconds, "`seconds` of a sample")
	return cmd
}
