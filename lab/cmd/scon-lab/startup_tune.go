package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/lab/startbench"
)

func newStartupTuneCommand() *cobra.Command {
	var f startupFlags
	var o startbench.SearchOptions
	var network, jsonFile string
	cmd := &cobra.Command{
		Use:   "tune",
		Short: cli.LabCommands["startup tune"],
		Long: `Search the admission limits with the shortest start time.

Each trial starts --count containers with limits for the stages add_cni, cgroup and
start_vm. Bayesian optimisation and random search alternate, with the same number of
trials. The best limits of both are measured again, compared with no limits, also
with --others containers. The result is stored in --tuned by machine, kernel, runtime
and network; scon startup bench uses it. Ctrl-C ends the search and stores nothing.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.networks, f.steps = []string{network + "+admission"}, []string{startbench.StepStart}
			tuned := f.tuned
			f.tuned = "" // the search begins anew
			options, err := f.options(cmd, 1)
			if err != nil {
				return err
			}
			o.Options = options
			if o.Trials < 1 || o.Trials > 1000 || o.Checks < 1 || o.Checks > 1000 {
				return cli.Usagef(cmd, "--trials %d, --checks %d: want 1 to 1000", o.Trials, o.Checks)
			}
			for _, n := range o.Others {
				if n < 1 || n > mostContainers {
					return cli.Usagef(cmd, "--others %d: want 1 to %d", n, mostContainers)
				}
			}
			return runTune(cmd, o, tuned, jsonFile)
		},
	}
	f.addFlags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&network, "network", startbench.NetworkSconPool, "`network` to tune: scon-pool or scon-nopool, with options")
	flags.IntVar(&o.Trials, "trials", 25, "`number` of trials of each search method")
	flags.IntVar(&o.Checks, "checks", 10, "`number` of repeated measurements of the best limits")
	flags.IntSliceVar(&o.Others, "others", nil, "also measure the best limits with these `numbers` of containers")
	flags.Uint64Var(&o.Seed, "seed", 1, "random `seed` of both search methods")
	flags.StringVar(&f.tuned, "tuned", defaultTuned, "`file` to store the result in")
	flags.StringVar(&jsonFile, "json", "", "write all trials to this `file`")
	return cmd
}

func runTune(cmd *cobra.Command, o startbench.SearchOptions, tuned, jsonFile string) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	found, err := startbench.Search(ctx, o)
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted; nothing is stored")
	}
	if found == nil {
		return err
	}
	if jsonFile != "" {
		text, jsonErr := json.MarshalIndent(found, "", "  ")
		if jsonErr == nil {
			jsonErr = os.WriteFile(jsonFile, append(text, '\n'), 0o644)
		}
		err = errors.Join(err, jsonErr)
	}
	err = errors.Join(err, found.WriteTable(cmd.OutOrStdout()))
	if err != nil {
		return err
	}
	if err := found.Keep(tuned); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "\nSettings (startup.limits of scon.yaml): %s; stored in %s\n", found.Best["bayes"], tuned)
	return nil
}
