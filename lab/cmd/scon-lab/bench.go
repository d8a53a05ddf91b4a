package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/bench/peer"
	"github.com/scon-project/scon/lab/figures"
	"github.com/scon-project/scon/lab/figures/helper"
	"github.com/scon-project/scon/lab/output"
	"github.com/scon-project/scon/test/bed/lab"
)

func newBenchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: cli.LabCommands["bench"],
		Long: `Measure native, container and express side by side in a private lab, and
nftables' flowtable and netkit if the kernel supports them.

Each round measures every mode once. The table shows medians, and ratios of
medians with 95 % confidence intervals; --json writes all samples to a file.
Ctrl-C ends a run and keeps the samples taken so far.`,
		Args: cli.KnownVerb,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newBenchQuickCommand(), newBenchShortCommand(), newBenchHostCommand(), newBenchChurnCommand(), newBenchScaleCommand(), newBenchCPUsCommand(), newBenchAppCommand(), newBenchCostCommand(), newBenchCountCommand(),
		newBenchFiguresCommand(), newBenchShowCommand(), newBenchSummaryCommand(), newBenchGainsCommand(),
		newBenchPeerCommand(), newBenchHelperCommand())
	return cmd
}

func newBenchQuickCommand() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "quick",
		Short: "Measure " + bench.Quick.Short,
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd, bench.Quick)
		},
	}
	o.addFlags(cmd, bench.Quick)
	return cmd
}

func newBenchShortCommand() *cobra.Command {
	var o benchOptions
	connections := bench.ShortConnections
	cmd := &cobra.Command{
		Use:   "short",
		Short: "Measure " + bench.Short(connections).Short,
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if connections < 1 {
				return cli.Usagef(cmd, "--connections %d: want at least 1", connections)
			}
			return o.run(cmd, bench.Short(connections))
		},
	}
	o.addFlags(cmd, bench.Short(connections))
	cmd.Flags().IntVarP(&connections, "connections", "n", connections, "`number` of connections in each sample")
	return cmd
}

func newBenchHostCommand() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "host",
		Short: "Measure " + bench.Host.Short,
		Long: `Measure a process of the host itself without SCON (native) and while its daemon
runs with hooks at a container's port and at the uplink (loaded).

'scon bench cost --host' counts the instructions instead, which other load on this
machine does not change.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.rounds < 1 {
				return cli.Usagef(cmd, "--rounds %d: want at least 1", o.rounds)
			}
			return o.show(cmd, func(ctx context.Context) (*bench.Result, error) {
				return bench.Run(ctx, bench.Host, bench.Options{Rounds: o.rounds, Progress: cli.NewProgress(os.Stderr)})
			})
		},
	}
	o.addCommonFlags(cmd, bench.Host.Rounds)
	return cmd
}

func newBenchCPUsCommand() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "cpus",
		Short: "Measure " + bench.CPUs.Short,
		Long: `Measure whether packets on one CPU slow down those on another: of the host itself
without SCON (native) and while its daemon runs (loaded), and of two containers.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.rounds < 1 {
				return cli.Usagef(cmd, "--rounds %d: want at least 1", o.rounds)
			}
			return o.show(cmd, func(ctx context.Context) (*bench.Result, error) {
				return bench.RunTraffic(ctx, bench.CPUs.Here(), bench.Options{Rounds: o.rounds, Progress: cli.NewProgress(os.Stderr)})
			})
		},
	}
	o.addCommonFlags(cmd, bench.CPUs.Rounds)
	return cmd
}

// newBenchPeerCommand is the traffic generator that bench starts in the lab's
// nodes.
func newBenchPeerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "peer",
		Hidden: true,
		Args:   cli.NoArgs,
		Run:    func(*cobra.Command, []string) { peer.Main(os.Stdin, os.Stdout) },
	}
}

// newBenchHelperCommand generates load, draws, and launches containers for the
// commands that measure, in a process of its own.
func newBenchHelperCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "helper ORDER",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		Run:    func(_ *cobra.Command, args []string) { os.Exit(helper.Main(args)) },
	}
}

// benchOptions are the flags of experiments.
type benchOptions struct {
	rounds  int
	modes   []string
	json    string
	plots   string
	family  int
	overlay bool
	uplink  string
	between string

	draw func(r *bench.Result, dir string) error // draws the plots
}

func (o *benchOptions) addFlags(cmd *cobra.Command, e bench.Experiment) {
	var modes []string
	for _, m := range e.Modes {
		modes = append(modes, m.Name)
	}
	o.addCommonFlags(cmd, e.Rounds)
	cmd.Flags().StringSliceVar(&o.modes, "modes", nil, "measure only these `modes` of "+strings.Join(modes, ", "))
	cmd.Flags().BoolVar(&o.overlay, "overlay", false, "measure over VXLAN, as set up by flannel; metrics are named vxlan_...")
	cmd.Flags().StringVar(&o.uplink, "uplink", "", "measure over an uplink of this `kind`: "+strings.Join(lab.UplinkKinds(), ", ")+"; metrics are named after it")
	var paths []string
	for _, p := range bench.Paths {
		paths = append(paths, p.Name)
	}
	cmd.Flags().StringVar(&o.between, "between", "", "measure between two containers, or a container and a machine outside of its bridge (..-out), on a `path`: "+strings.Join(paths, ", "))
	cli.CompleteWords(cmd, "modes", modes...)
	cli.CompleteWords(cmd, "uplink", lab.UplinkKinds()...)
	cli.CompleteWords(cmd, "between", paths...)
	cmd.Flags().IntVar(&o.family, "family", 4, "IP `version`, 4 or 6; metrics of IPv6 have a 6 in their name")
}

// addCommonFlags adds those of every experiment.
func (o *benchOptions) addCommonFlags(cmd *cobra.Command, rounds int) {
	if o.draw == nil {
		o.draw = figures.DrawMetrics
	}
	cmd.Flags().IntVar(&o.rounds, "rounds", rounds, "`number` of rounds; every round measures each mode once")
	cmd.Flags().StringVar(&o.json, "json", "", "write the result to this `file`")
	cmd.Flags().StringVar(&o.plots, "plots", "", "draw a plot of each metric into this `folder`, as PNG and SVG")
}

// run carries out an experiment and prints its result, also an incomplete one.
func (o *benchOptions) run(cmd *cobra.Command, e bench.Experiment) error {
	if o.rounds < 1 {
		return cli.Usagef(cmd, "--rounds %d: want at least 1", o.rounds)
	}
	e, err := o.choose(cmd, e)
	if err != nil {
		return err
	}
	here := e.Here()
	for _, m := range e.Modes {
		if len(o.modes) > 0 && !slices.Contains(here.Modes, m) {
			return fmt.Errorf("--modes %s: this kernel does not support it (%s); 'scon bench cost' measures it in a guest", m.Name, needs[m])
		}
	}
	return o.show(cmd, func(ctx context.Context) (*bench.Result, error) {
		return bench.Run(ctx, here, bench.Options{Rounds: o.rounds, Progress: cli.NewProgress(os.Stderr)})
	})
}

// needs are the kernel settings that a mode requires.
var needs = map[bench.Mode]string{
	bench.Flowtable:    "CONFIG_NFT_FLOW_OFFLOAD",
	bench.ExpressShort: "CONFIG_DEBUG_INFO_BTF",
	bench.Netkit:       "CONFIG_NETKIT, Linux 6.7",
}

// choose applies the flags to an experiment.
func (o *benchOptions) choose(cmd *cobra.Command, e bench.Experiment) (bench.Experiment, error) {
	switch {
	case o.overlay && o.uplink != "":
		return e, cli.Usagef(cmd, "--overlay and --uplink are measured one at a time")
	case o.family == 6 && (o.overlay || o.uplink != ""):
		return e, cli.Usagef(cmd, "--overlay and --uplink are measured over IPv4")
	case o.uplink != "" && !slices.Contains(lab.UplinkKinds(), o.uplink):
		return e, cli.Usagef(cmd, "--uplink %q: want %s", o.uplink, strings.Join(lab.UplinkKinds(), ", "))
	case o.family == 4 && o.overlay:
		e = e.OverVXLAN()
	case o.family == 4 && o.uplink != "":
		e = e.OverUplink(o.uplink)
	case o.family == 6:
		e = e.OverIPv6()
	case o.family != 4:
		return e, cli.Usagef(cmd, "--family %d: want 4 or 6", o.family)
	}
	if o.between != "" {
		between, err := e.Between(o.between)
		if err != nil {
			return e, cli.Usagef(cmd, "--between %s: %v", o.between, err)
		}
		e = between
	}
	if len(o.modes) == 0 {
		return e, nil
	}
	e, err := e.Only(o.modes)
	if err != nil {
		return e, cli.Usagef(cmd, "--modes: %v", err)
	}
	return e, nil
}

// show measures, writes the result, draws its plots and prints its table.
func (o *benchOptions) show(cmd *cobra.Command, measure func(context.Context) (*bench.Result, error)) error {
	if err := checkOutput(o.json); err != nil {
		return err
	}
	if o.plots != "" {
		if err := os.MkdirAll(o.plots, 0o755); err != nil {
			return fmt.Errorf("--plots: %w", err)
		}
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	result, err := measure(ctx)
	measured := result != nil && len(result.Samples) > 0
	if err != nil && ctx.Err() != nil {
		err = interrupted(measured)
	}
	if !measured {
		return err
	}
	if o.json != "" {
		err = errors.Join(err, result.WriteFile(o.json))
	}
	if o.plots != "" {
		err = errors.Join(err, o.draw(result, o.plots))
	}
	return errors.Join(err, result.WriteTable(cmd.OutOrStdout()))
}

// checkOutput checks before a long run that its files can be written; "" is no
// file.
func checkOutput(paths ...string) error {
	for _, path := range paths {
		if path == "" {
			continue
		}
		if err := output.Check(path); err != nil {
			return err
		}
	}
	return nil
}

// interrupted is the error of a run that a signal ended.
func interrupted(measured bool) error {
	if !measured {
		return errors.New("interrupted before the first sample")
	}
	return errors.New("interrupted; the samples taken so far are shown")
}
