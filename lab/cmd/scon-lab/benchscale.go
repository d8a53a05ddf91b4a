package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/figures"
)

func newBenchScaleCommand() *cobra.Command {
	var o benchOptions
	var connections []int
	duration := bench.ScaleDuration
	e := bench.Scale(bench.DefaultScale)
	cmd := &cobra.Command{
		Use:   "scale",
		Short: "Measure " + e.Short,
		Long: `Measure the time of a packet among many UDP connections of a container, drawn at
random: native, container, flowtable and express. In express also how long it takes
until 99 % of the packets go express, and the daemon's resident memory. Numbers of
connections that conntrack's limit does not allow are left out.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case o.rounds < 1:
				return cli.Usagef(cmd, "--rounds %d: want at least 1", o.rounds)
			case duration <= 0:
				return cli.Usagef(cmd, "--duration %v: want more than 0", duration)
			case len(connections) == 0 || slices.Min(connections) < 1 || slices.Max(connections) > 1<<20:
				return cli.Usagef(cmd, "--connections %v: want 1 to 1048576", connections)
			}
			fit, err := bench.FitScale(connections)
			if err != nil {
				return err
			}
			e := bench.Scale(fit).Here()
			if len(o.modes) > 0 {
				if e, err = e.Only(o.modes); err != nil {
					return cli.Usagef(cmd, "--modes: %v", err)
				}
			}
			o.draw = func(r *bench.Result, dir string) error {
				return errors.Join(figures.DrawMetrics(r, dir), figures.DrawScale(r, fit, dir))
			}
			return o.show(cmd, func(ctx context.Context) (*bench.Result, error) {
				return bench.RunScale(ctx, e, duration, bench.Options{Rounds: o.rounds, Progress: cli.NewProgress(os.Stderr)})
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
	flags.IntSliceVar(&connections, "connections", bench.DefaultScale, "`numbers` of connections")
	flags.DurationVar(&duration, "duration", duration, "`time` of a sample")
	return cmd
}
