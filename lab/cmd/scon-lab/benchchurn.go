package main

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/test/bed/vm"
)

func newBenchChurnCommand() *cobra.Command {
	var o benchOptions
	var counting bool
	var where bench.CountOptions
	churn := bench.DefaultChurn
	e := bench.Churn(churn)
	cmd := &cobra.Command{
		Use:   "churn",
		Short: "Measure " + e.Short,
		Long: `Measure many connections of a container among rules such as kube-proxy writes,
which only new connections meet, while rules change: container, flowtable and express,
each without and with changes of rules that no connection of the bench meets, and
express with changes that concern one more connection.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkChurn(cmd, o.rounds, churn); err != nil {
				return err
			}
			e := bench.Churn(churn)
			if len(o.modes) > 0 {
				only, err := e.Only(o.modes)
				if err != nil {
					return cli.Usagef(cmd, "--modes: %v", err)
				}
				e = only
			}
			if counting {
				result, err := bench.RunChurn(cmd.Context(), e, churn, bench.GuestOptions(o.rounds, cmd.OutOrStdout()))
				if result == nil {
					return err
				}
				return errors.Join(err, result.WriteGuestResult(cmd.OutOrStdout()))
			}
			progress := cli.NewProgress(os.Stderr)
			measure := func(ctx context.Context) (*bench.Result, error) {
				return bench.RunChurn(ctx, e.Here(), churn, bench.Options{Rounds: o.rounds, Progress: progress})
			}
			if where.Kernel != "" {
				where.Arch, where.Rounds, where.Progress = runtime.GOARCH, o.rounds, progress
				if err := checkGuest(cmd, where); err != nil {
					return err
				}
				measure = func(ctx context.Context) (*bench.Result, error) {
					return bench.ChurnInGuest(ctx, e, churn, where)
				}
			}
			return o.show(cmd, measure)
		},
	}
	var modes []string
	for _, m := range e.Modes {
		modes = append(modes, m.Name)
	}
	o.addCommonFlags(cmd, e.Rounds)
	flags := cmd.Flags()
	flags.StringSliceVar(&o.modes, "modes", nil, "measure only these `modes` of "+strings.Join(modes, ", "))
	flags.IntVar(&churn.Rules, "rules", churn.Rules, "`number` of rules")
	flags.IntVar(&churn.Changes, "changes", churn.Changes, "`number` of changes in a second, 1 to 1000")
	flags.IntVar(&churn.Connections, "connections", churn.Connections, "`number` of connections")
	flags.DurationVar(&churn.Duration, "duration", churn.Duration, "`time` of a sample")
	flags.StringVar(&where.Kernel, "kernel", "", "measure in a guest that counts instructions, with this `version` of the kernel: "+strings.Join(vm.Kernels(), ", "))
	flags.BoolVar(&counting, "counting", false, "report to the host of the guest that this is")
	flags.MarkHidden("counting")
	return cmd
}

// checkChurn refuses settings that cannot be measured.
func checkChurn(cmd *cobra.Command, rounds int, o bench.ChurnOptions) error {
	switch {
	case rounds < 1:
		return cli.Usagef(cmd, "--rounds %d: want at least 1", rounds)
	case o.Rules < 1:
		return cli.Usagef(cmd, "--rules %d: want at least 1", o.Rules)
	case o.Changes < 1 || o.Changes > 1000:
		return cli.Usagef(cmd, "--changes %d: want 1 to 1000", o.Changes)
	case o.Connections < 1:
		return cli.Usagef(cmd, "--connections %d: want at least 1", o.Connections)
	case o.Duration <= 0:
		return cli.Usagef(cmd, "--duration %v: want more than 0", o.Duration)
	}
	return nil
}
