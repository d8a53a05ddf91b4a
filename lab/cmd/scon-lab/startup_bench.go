package main

import (
	"context"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/suggest"
	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/startbench"
)

// mostContainers that a bench starts at once.
const mostContainers = 1000

func newStartupBenchCommand() *cobra.Command {
	show := benchOptions{draw: startbench.Draw}
	var f startupFlags
	cmd := &cobra.Command{
		Use:   "bench",
		Short: cli.LabCommands["startup bench"],
		Long: `Measure the start of many containers at once, with their network.

A sample is the time until the last of --count containers has started and answered a
ping. Each round measures every network once. A network is one of
` + strings.Join(startbench.Networks, ", ") + `,
with options: NAME+qos, NAME+rules=N, NAME+tenants=N, NAME+kind=KIND,
NAME+admission, NAME+oci. The bench runs in a private network namespace and cgroup,
which it removes when it ends. Ctrl-C ends it and keeps the samples taken so far.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := f.options(cmd, show.rounds)
			if err != nil {
				return err
			}
			return show.show(cmd, func(ctx context.Context) (*bench.Result, error) {
				return startbench.Run(ctx, o)
			})
		},
	}
	f.addFlags(cmd)
	show.addCommonFlags(cmd, 10)
	flags := cmd.Flags()
	flags.StringSliceVar(&f.networks, "network", startbench.Networks, "`networks` to compare")
	flags.StringSliceVar(&f.steps, "steps", []string{startbench.StepStart, startbench.StepAdd},
		"`steps` to measure of "+strings.Join(startbench.StepNames(), ", "))
	flags.StringToIntVar(&f.limits, "limits", nil,
		"maximum number of containers in a `stage` at once, for NAME+admission: add_cni=N,cgroup=N,start_vm=N "+
			"(default: the result of scon startup tune, else four per CPU)")
	flags.StringVar(&f.tuned, "tuned", defaultTuned, "`file` with the results of scon startup tune")
	return cmd
}

// startupFlags are the flags of bench and tune.
type startupFlags struct {
	runtime, launcher string
	count             int
	networks, steps   []string
	limits            map[string]int
	tuned             string
}

// defaultTuned is where tune stores its results.
const defaultTuned = "/var/lib/scon/tuned.json"

func (f *startupFlags) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.runtime, "runtime", startbench.RuntimeRunc, "`name` of the runtime: "+strings.Join(startbench.Runtimes, ", "))
	flags.StringVar(&f.launcher, "launcher", startbench.LauncherDirect,
		"`name` of the launcher: direct calls plugins and runtime, cri requests a pod from containerd")
	flags.IntVar(&f.count, "count", 50, "`number` of containers that start at once")
}

// options of the flags.
func (f *startupFlags) options(cmd *cobra.Command, rounds int) (o startbench.Options, err error) {
	if rounds < 1 {
		return o, cli.Usagef(cmd, "--rounds %d: want at least 1", rounds)
	}
	if f.count < 1 || f.count > mostContainers {
		return o, cli.Usagef(cmd, "--count %d: want 1 to %d", f.count, mostContainers)
	}
	if !slices.Contains(startbench.Runtimes, f.runtime) {
		return o, cli.Usagef(cmd, "--runtime %q is none of %s%s", f.runtime,
			strings.Join(startbench.Runtimes, ", "), suggest.Hint(f.runtime, startbench.Runtimes))
	}
	if !slices.Contains(startbench.Launchers, f.launcher) {
		return o, cli.Usagef(cmd, "--launcher %q is none of %s%s", f.launcher,
			strings.Join(startbench.Launchers, ", "), suggest.Hint(f.launcher, startbench.Launchers))
	}
	if err := startbench.CheckSteps(f.steps); err != nil {
		return o, cli.Usagef(cmd, "--steps: %v", err)
	}
	o = startbench.Options{
		Launcher: f.launcher, Runtime: f.runtime, Count: f.count, Steps: f.steps,
		Rounds: rounds, Progress: cli.NewProgress(os.Stderr),
	}
	for _, name := range f.networks {
		m, err := startbench.ParseMode(name)
		if err != nil {
			return o, cli.Usagef(cmd, "--network: %v", err)
		}
		if slices.Contains(o.Modes, m) {
			return o, cli.Usagef(cmd, "--network has %s twice", name)
		}
		o.Modes = append(o.Modes, m)
	}
	if len(o.Modes) == 0 {
		return o, cli.Usagef(cmd, "--network: want at least one")
	}
	o.Limits, err = f.chooseLimits(cmd, o)
	return o, err
}

// chooseLimits returns the limits of the flag, those stored by tune, or the default.
func (f *startupFlags) chooseLimits(cmd *cobra.Command, o startbench.Options) (startbench.Limits, error) {
	given := startbench.Limits(f.limits)
	if err := given.Check(); err != nil {
		return nil, cli.Usagef(cmd, "--limits: %v", err)
	}
	if len(given) > 0 {
		return given, nil
	}
	for _, m := range o.Modes {
		if !m.Admission || f.tuned == "" {
			continue
		}
		if l, ok, err := startbench.Kept(f.tuned, o.Launcher, o.Runtime, m); ok || err != nil {
			return l, err
		}
	}
	return startbench.DefaultLimits(), nil
}
